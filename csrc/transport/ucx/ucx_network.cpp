#include "transport/ucx/ucx_network.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "core/clock.h"
#include "core/error.h"
#include "transport/choice.h"

namespace pycoll::ucx {
namespace {

constexpr std::string_view kFormat = "pycoll-ucx/1 ";
constexpr unsigned kActiveMessage = 0;
constexpr size_t kLongestMessage = 1 << 20;
// A piece of the stream: as much as one message of UCX's TCP transport carries with our header and its own.
constexpr size_t kLongestPiece = 60 << 10;
constexpr size_t kLargestRing = 1 << 20;
constexpr size_t kSmallestRing = 128 << 10;
constexpr size_t kAllRings = 32 << 20;  // of a rank that talks with all others, both directions
constexpr int kMostLanes = 64;
constexpr int kRoundsAtOnce = 8;
constexpr std::chrono::milliseconds kFarewell(100);
constexpr std::chrono::milliseconds kFlush(20);

size_t ring_size_for(int ranks) {
  const size_t share = kAllRings / 2 / static_cast<size_t>(std::max(ranks, 1));
  return std::clamp(share, kSmallestRing, kLargestRing) & ~size_t{4095};
}

std::string to_hex(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

// The binary address. `whose` is named in the InvalidArgument that a malformed text raises.
std::string parse(const std::string& text, const std::string& whose) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string bytes;
  bool good =
      text.starts_with(kFormat) && text.size() > kFormat.size() && text.size() % 2 == kFormat.size() % 2;
  for (size_t i = kFormat.size(); good && i < text.size(); i += 2) {
    good = digit(text[i]) >= 0 && digit(text[i + 1]) >= 0;
    bytes += static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1]));
  }
  if (!good) throw InvalidArgument(whose + " gave an address that is not one of UCX: " + text);
  return bytes;
}

std::string seconds(std::chrono::nanoseconds time) {
  std::ostringstream text;
  text << std::chrono::duration<double>(time).count() << " s";
  return text.str();
}

ucp_request_param_t parameters(void* user_data, ucp_mem_h memory) {
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.user_data = user_data;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  if (memory != nullptr) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    params.memh = memory;
  }
  return params;
}

}  // namespace

UcxNetwork::UcxNetwork(const Library& library, const NetworkOptions& options,
                       const std::vector<std::string>& interfaces)
    : library_(library),
      options_(options),
      context_(std::make_unique<Context>(library, settings_for(options, interfaces))),
      worker_(std::make_unique<Worker>(*context_)),
      ring_size_(ring_size_for(options.ranks)),
      wires_(context_->transports()),
      connections_(static_cast<size_t>(options.ranks)) {
  if (options.lanes < 1 || options.lanes > kMostLanes)
    throw InvalidArgument("group '" + options.group + "': PYCOLL_LANES is " + std::to_string(options.lanes) +
                          "; between 1 and " + std::to_string(kMostLanes) + " connections are possible");
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kActiveMessage;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.arg = this;
  handler.cb = [](void* self, const void* header, size_t header_length, void* data, size_t length,
                  const ucp_am_recv_param_t* param) {
    return static_cast<UcxNetwork*>(self)->on_data(header, header_length, data, length, *param);
  };
  const ucs_status_t status = library_.worker_set_am_recv_handler(worker_->handle(), &handler);
  if (status != UCS_OK)
    throw Error(std::string("UCX takes no handler of messages: ") + library_.status_string(status));
}

UcxNetwork::~UcxNetwork() {
  // A process that ends while something is unread makes its kernel drop what was not sent yet: wait a little
  // until the others have seen the farewell, after which they send nothing more.
  const auto until = SteadyClock::now() + kFarewell;
  const auto unanswered = [](const std::unique_ptr<Connection>& one) {
    return one && one->messages != nullptr && one->lost.empty() && !one->leaves_at && !one->farewell_answered;
  };
  while (leaving_ && std::any_of(connections_.begin(), connections_.end(), unanswered)) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - SteadyClock::now()).count();
    if (left <= 0) break;
    poll([](int, std::span<const std::byte>) {});
    if (!arm()) continue;
    pollfd waiting{descriptor(), POLLIN, 0};
    ::poll(&waiting, 1, static_cast<int>(left));
  }
  for (auto& one : connections_)
    if (one) close(*one);
  // Forced closing needs no answer: a few rounds.
  for (int i = 0; i < 1000 && (!closing_.empty() || under_way_ > 0); ++i) {
    worker_->progress();
    forget_finished_requests();
  }
  if (flush_request_ != nullptr) library_.request_free(flush_request_);
  connections_.clear();
  worker_.reset();
}

std::string UcxNetwork::wires() const {
  std::string text;
  for (const std::string& wire : wires_) text += (text.empty() ? "" : ", ") + wire;
  return text;
}

std::string UcxNetwork::description() const {
  std::string text = "UCX " + library_.version() + " (" + library_.origin + ") over " + wires();
  return text + ", " + std::to_string(options_.lanes) + (options_.lanes == 1 ? " lane" : " lanes");
}

std::string UcxNetwork::address() const {
  return std::string(kFormat) + to_hex(worker_->address());
}

void UcxNetwork::meet(std::vector<std::string> addresses, std::vector<std::string> hosts, uint64_t key) {
  const std::string group = "group '" + options_.group + "': ";
  if (addresses.size() != connections_.size() || hosts.size() != connections_.size())
    throw InvalidArgument(group + std::to_string(addresses.size()) + " addresses and " +
                          std::to_string(hosts.size()) + " hosts for " + std::to_string(connections_.size()) +
                          " ranks");
  check_same_network(name(), options_.rank, addresses, hosts);
  std::vector<std::string> binary;
  for (size_t rank = 0; rank < addresses.size(); ++rank)
    binary.push_back(
        parse(addresses[rank], group + "rank " + std::to_string(rank) + " on host '" + hosts[rank] + "'"));
  addresses_ = std::move(binary);
  key_ = key;
}

void UcxNetwork::check_rank(int rank) const {
  const std::string group = "group '" + options_.group + "': ";
  if (addresses_.empty()) throw InvalidArgument(group + "its ranks have not met yet");
  if (rank < 0 || rank >= options_.ranks || rank == options_.rank)
    throw InvalidArgument(group + "rank " + std::to_string(rank) + " is no other rank of " +
                          std::to_string(options_.ranks));
}

Connection& UcxNetwork::connection(int peer) {
  auto& one = connections_[static_cast<size_t>(peer)];
  if (!one) one = std::make_unique<Connection>(*this, peer);
  return *one;
}

const Connection* UcxNetwork::known(int peer) const {
  return peer >= 0 && peer < options_.ranks ? connections_[static_cast<size_t>(peer)].get() : nullptr;
}

// An endpoint, connected or about to be; null: that failed at once.
ucp_ep_h UcxNetwork::connect(Connection& to) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(addresses_[static_cast<size_t>(to.peer)].data());
  if (to.begun == SteadyClock::time_point{}) to.begun = SteadyClock::now();
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = &to;
  params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t status) {
    auto& failed = *static_cast<Connection*>(arg);
    if (!failed.failure) failed.failure = status;
    failed.network->failures_ = true;
  };
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = library_.ep_create(worker_->handle(), &params, &endpoint);
  if (status == UCS_OK) return endpoint;
  to.failure = status;
  failures_ = true;
  return nullptr;
}

ucp_ep_h UcxNetwork::lane(Connection& to) {
  if (to.lanes.empty()) {
    for (int i = 0; i < options_.lanes; ++i) {
      ucp_ep_h endpoint = connect(to);
      if (endpoint == nullptr) return nullptr;
      to.lanes.push_back(endpoint);
    }
  }
  return to.lanes[to.outgoing->pieces++ % to.lanes.size()];
}

void UcxNetwork::start(Connection& to, ucp_ep_h endpoint, Operation operation,
                       std::span<const std::byte> bytes, ucp_mem_h memory) {
  Operation& kept = to.operations.emplace_back(std::move(operation));
  kept.connection = &to;
  kept.header.key = key_;
  kept.header.source = options_.rank;
  if (!kept.payload.empty()) bytes = kept.payload;
  ucp_request_param_t params = parameters(&kept, memory);
  params.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    auto& operation = *static_cast<Operation*>(user_data);
    UcxNetwork& network = *operation.connection->network;
    network.finish(operation, status);
    network.library_.request_free(request);
  };
  ++sent_;
  last_sent_ = SteadyClock::now();
  ++under_way_;
  const ucs_status_ptr_t request = library_.am_send_nbx(
      endpoint, kActiveMessage, &kept.header, sizeof kept.header, bytes.data(), bytes.size(), &params);
  if (!UCS_PTR_IS_PTR(request)) finish(kept, UCS_PTR_STATUS(request));
}

void UcxNetwork::finish(Operation& operation, ucs_status_t status) {
  Connection& to = *operation.connection;
  if (status != UCS_OK && !to.failure) {
    to.failure = status;
    failures_ = true;
  }
  if (operation.piece != nullptr) to.outgoing->ring.gone(*operation.piece);
  operation.done = true;
  --under_way_;
  while (!to.operations.empty() && to.operations.front().done) to.operations.pop_front();
}

// A message, with or without a payload.
void UcxNetwork::tell(Connection& to, Kind kind, uint64_t position, std::span<const std::byte> payload) {
  const bool farewell = kind == Kind::Leave || kind == Kind::Goodbye;
  if (!reachable(to) || (!farewell && (leaving_ || to.leaves_at))) return;
  if (to.messages == nullptr) to.messages = connect(to);
  if (to.messages == nullptr) return;
  Operation operation;
  operation.header.kind = kind;
  operation.header.position = position;
  operation.payload.assign(payload.begin(), payload.end());
  start(to, to.messages, std::move(operation), {}, nullptr);
}

size_t UcxNetwork::send(int destination, std::span<const std::byte> bytes) {
  check_rank(destination);
  Connection& to = connection(destination);
  if (!to.outgoing) to.outgoing.emplace(*context_, ring_size_);
  size_t taken = 0;
  while (taken < bytes.size() && reachable(to) && !to.failure && !to.leaves_at && !leaving_) {
    SendRing::Piece* piece = to.outgoing->ring.put(bytes.subspan(taken), kLongestPiece);
    if (piece == nullptr) break;
    taken += piece->bytes.size();
    ucp_ep_h endpoint = lane(to);
    if (endpoint == nullptr) break;  // lost: what was taken is lost with it
    Operation operation;
    operation.header.kind = Kind::Stream;
    operation.header.position = piece->position;
    operation.piece = piece;
    start(to, endpoint, std::move(operation), piece->bytes, to.outgoing->registered.handle());
  }
  return taken;
}

std::span<const std::byte> UcxNetwork::arrived(int source) {
  const Connection* from = known(source);
  if (from == nullptr || !from->incoming) return {};
  return from->incoming->ring.arrived();
}

void UcxNetwork::received(int source, size_t bytes) {
  if (bytes == 0) return;
  check_rank(source);
  Connection& from = connection(source);
  if (!from.incoming) throw InvalidArgument("nothing has arrived from rank " + std::to_string(source));
  from.incoming->ring.take(bytes);
  give_credit(from);
}

void UcxNetwork::give_credit(Connection& to) {
  // Seldom, and yet in time: a sender that finds its ring full waits for at least three quarters of it that
  // this side has not taken.
  const uint64_t taken = to.incoming->ring.taken();
  if (taken - to.incoming->credited < ring_size_ / 4 || to.leaves_at) return;
  to.incoming->credited = taken;
  tell(to, Kind::Credit, taken);
}

void UcxNetwork::post(int destination, std::span<const std::byte> message) {
  check_rank(destination);
  if (message.size() > kLongestMessage)
    throw InvalidArgument("a message of " + std::to_string(message.size()) + " bytes; at most 1 MiB");
  Connection& to = connection(destination);
  tell(to, Kind::Message, to.messages_sent++, message);
}

void UcxNetwork::watch(int peer) {
  check_rank(peer);
  Connection& to = connection(peer);
  if (to.messages == nullptr) tell(to, Kind::Hello, 0);
}

ucs_status_t UcxNetwork::on_data(const void* header_bytes, size_t header_length, void* data, size_t length,
                                 const ucp_am_recv_param_t& param) {
  Header header;
  if (header_length != sizeof header) return UCS_OK;  // a stranger's; dropped
  std::memcpy(&header, header_bytes, sizeof header);
  if (header.key != key_ || addresses_.empty() || header.source < 0 || header.source >= options_.ranks ||
      header.source == options_.rank)
    return UCS_OK;
  Connection& from = connection(header.source);
  from.heard = SteadyClock::now();
  const bool asks = (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  switch (header.kind) {
    case Kind::Stream:
      return on_stream(from, header, data, length, asks);
    case Kind::Message:
      return on_message(from, header, data, length, asks);
    case Kind::Credit:
      if (from.outgoing) from.outgoing->ring.given_back(header.position);
      break;
    case Kind::Leave:
      from.leaves_at = header.position;
      break;
    case Kind::Goodbye:
      from.farewell_answered = true;
      break;
    case Kind::Hello:
      break;
  }
  return UCS_OK;
}

ucs_status_t UcxNetwork::on_stream(Connection& from, const Header& header, void* data, size_t length,
                                   bool asks) {
  if (!from.incoming) from.incoming.emplace(*context_, ring_size_);
  std::byte* place = from.incoming->ring.expect(header.position, length);
  if (place == nullptr) {
    from.failure = UCS_ERR_INVALID_PARAM;
    failures_ = true;
    return UCS_OK;
  }
  if (asks)
    return land(std::make_unique<Landing>(Landing{this, header, {}}), data, place, length,
                from.incoming->registered.handle());
  std::memcpy(place, data, length);
  from.incoming->ring.landed(header.position);
  return UCS_OK;
}

ucs_status_t UcxNetwork::on_message(Connection& from, const Header& header, void* data, size_t length,
                                    bool asks) {
  if (length > kLongestMessage) return UCS_OK;
  if (asks) {
    auto landing = std::make_unique<Landing>(Landing{this, header, std::vector<std::byte>(length)});
    std::byte* place = landing->message.data();
    return land(std::move(landing), data, place, length, nullptr);
  }
  const auto* bytes = static_cast<const std::byte*>(data);
  hand_in(from, header.position, {bytes, bytes + length});
  return UCS_OK;
}

ucs_status_t UcxNetwork::land(std::unique_ptr<Landing> landing, void* description, std::byte* place,
                              size_t length, ucp_mem_h memory) {
  ucp_request_param_t params = parameters(landing.get(), memory);
  params.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* user_data) {
    const std::unique_ptr<Landing> landing(static_cast<Landing*>(user_data));
    UcxNetwork& network = *landing->network;
    --network.under_way_;
    network.landed(*landing, status);
    network.library_.request_free(request);
  };
  const ucs_status_ptr_t request =
      library_.am_recv_data_nbx(worker_->handle(), description, place, length, &params);
  if (UCS_PTR_IS_PTR(request)) {
    ++under_way_;
    (void)landing.release();  // the callback's
  } else {
    landed(*landing, UCS_PTR_STATUS(request));
  }
  return UCS_OK;
}

void UcxNetwork::landed(Landing& landing, ucs_status_t status) {
  Connection& from = connection(landing.header.source);
  if (status != UCS_OK) {
    if (!from.failure) from.failure = status;
    failures_ = true;
  } else if (landing.header.kind == Kind::Stream) {
    from.incoming->ring.landed(landing.header.position);
  } else {
    hand_in(from, landing.header.position, std::move(landing.message));
  }
}

// Messages in the order of their numbers.
void UcxNetwork::hand_in(Connection& from, uint64_t number, std::vector<std::byte> message) {
  if (number < from.messages_received) return;
  inbox_bytes_ += message.size();
  from.early.emplace(number, std::move(message));
  for (auto next = from.early.begin(); next != from.early.end() && next->first == from.messages_received;
       next = from.early.erase(next)) {
    inbox_.push_back({from.peer, std::move(next->second)});
    ++from.messages_received;
  }
}

bool UcxNetwork::progress() {
  bool any = false;
  for (int i = 0; i < kRoundsAtOnce && worker_->progress() != 0; ++i) any = true;
  return any;
}

bool UcxNetwork::poll(OnMessage on_message) {
  bool happened = progress();
  if (failures_) happened |= judge_failures();
  answer_farewells();
  for (size_t waiting = inbox_.size(); waiting > 0; --waiting) {
    const Received next = std::move(inbox_.front());
    inbox_.pop_front();
    inbox_bytes_ -= next.message.size();
    on_message(next.source, next.message);
    happened = true;
  }
  forget_finished_requests();
  return happened;
}

// What has come before a connection broke is read first: a peer that takes its leave and goes is not lost.
bool UcxNetwork::judge_failures() {
  failures_ = false;
  while (progress()) continue;
  for (auto& one : connections_) {
    if (!one || !one->failure) continue;
    close(*one);
    if (leaving_ || !one->lost.empty() || left(one->peer)) continue;
    one->lost = describe_failure(*one, *one->failure);
  }
  return true;
}

std::string UcxNetwork::describe_failure(const Connection& connection, ucs_status_t status) const {
  if (connection.leaves_at) return "it left before all that it had sent was here";
  const auto now = SteadyClock::now();
  if (status == UCS_ERR_CONNECTION_RESET) {
    // UCX says so also when the kernel has given up on a peer that is silent.
    const bool surely = now - connection.heard < options_.silence / 2;
    return std::string("its connection was reset") +
           (surely ? "" : ", or it gave no sign of life for " + seconds(options_.silence));
  }
  if (status == UCS_ERR_INVALID_PARAM) return "it sent what was not asked for";
  // UCX says "timeout" of a connection refused too.
  const bool silent = status == UCS_ERR_ENDPOINT_TIMEOUT || status == UCS_ERR_TIMED_OUT;
  const bool was_there = connection.heard != SteadyClock::time_point{};
  if (silent && (was_there || now - connection.begun >= options_.silence / 2))
    return "no sign of life for " + seconds(options_.silence);
  const std::string why = silent ? "refused, or no route" : library_.status_string(status);
  return "cannot be reached: tried " + wires() + ": " + why;
}

void UcxNetwork::answer_farewells() {
  for (auto& one : connections_) {
    if (!one || !one->leaves_at || one->farewell_answered) continue;
    one->farewell_answered = true;
    if (one->messages != nullptr && !one->failure) tell(*one, Kind::Goodbye, 0);
  }
}

void UcxNetwork::close(Connection& connection) {
  if (connection.closed) return;
  connection.closed = true;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  std::vector<ucp_ep_h> endpoints = std::exchange(connection.lanes, {});
  if (connection.messages != nullptr) endpoints.push_back(std::exchange(connection.messages, nullptr));
  for (ucp_ep_h endpoint : endpoints) {
    const ucs_status_ptr_t request = library_.ep_close_nbx(endpoint, &params);
    if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
  }
}

void UcxNetwork::forget_finished_requests() {
  std::erase_if(closing_, [&](void* request) {
    if (library_.request_check_status(request) == UCS_INPROGRESS) return false;
    library_.request_free(request);
    return true;
  });
  if (flush_request_ != nullptr && library_.request_check_status(flush_request_) != UCS_INPROGRESS) {
    library_.request_free(flush_request_);
    flush_request_ = nullptr;
    flushed_ = flushing_;
  }
}

void UcxNetwork::start_flush() const {
  if (flush_request_ != nullptr || flushed_ == sent_) return;
  flushing_ = sent_;
  ucp_request_param_t params{};
  const ucs_status_ptr_t request = library_.worker_flush_nbx(worker_->handle(), &params);
  if (UCS_PTR_IS_PTR(request))
    flush_request_ = request;
  else
    flushed_ = flushing_;  // at once; or not at all, since those it goes to are lost
}

// What UCX calls sent may still be in a buffer of its own, until the kernel has room. Its flush tells; but
// that also waits for a peer that has not looked at a new connection yet, which may take as long as it
// computes.
bool UcxNetwork::flushed() const {
  if (under_way_ > 0) return false;
  start_flush();
  return flushed_ == sent_ || SteadyClock::now() - last_sent_ >= kFlush;
}

bool UcxNetwork::arm() {
  if (!inbox_.empty() || failures_) return false;
  if (flush_request_ != nullptr && SteadyClock::now() - last_sent_ < kFlush) return false;
  return library_.worker_arm(worker_->handle()) == UCS_OK;
}

const std::string* UcxNetwork::lost(int peer) const {
  const Connection* one = known(peer);
  return one != nullptr && !one->lost.empty() ? &one->lost : nullptr;
}

bool UcxNetwork::left(int peer) const {
  const Connection* one = known(peer);
  if (one == nullptr || !one->leaves_at) return false;
  return *one->leaves_at == 0 || (one->incoming && one->incoming->ring.has_all(*one->leaves_at));
}

void UcxNetwork::leave() {
  if (leaving_) return;
  leaving_ = true;
  for (auto& one : connections_)
    if (one) tell(*one, Kind::Leave, one->outgoing ? one->outgoing->ring.position() : 0);
}

size_t UcxNetwork::memory_bytes() const {
  size_t bytes = inbox_bytes_;
  for (const auto& one : connections_) {
    if (!one) continue;
    bytes += (one->outgoing ? ring_size_ : 0) + (one->incoming ? ring_size_ : 0);
    for (const Operation& operation : one->operations) bytes += operation.payload.size();
  }
  return bytes;
}

}  // namespace pycoll::ucx
