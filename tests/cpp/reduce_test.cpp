// What tests from Python cannot see of the kernels: that nothing beyond a buffer is even read, for every
// dtype, op and instruction set; and the contract's promises that a C++ caller relies on.
#include "reduce/reduce.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "core/error.h"

namespace {

using namespace pycoll;
using test::check;
using test::check_throws;

// Memory that ends where an inaccessible page begins (or begins where one ends): to touch what is beside it
// is a crash.
class Fenced {
 public:
  explicit Fenced(size_t bytes) : bytes_(bytes), page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    const size_t inside = (bytes + page_ - 1) / page_ * page_;
    whole_ = inside + 2 * page_;
    base_ = static_cast<std::byte*>(mmap(nullptr, whole_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + page_, inside, PROT_READ | PROT_WRITE) != 0) {
      throw Error("no memory for the test");
    }
  }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  ~Fenced() { munmap(base_, whole_); }
  void* at_start() const { return base_ + page_; }
  void* at_end() const { return base_ + whole_ - page_ - bytes_; }

 private:
  size_t bytes_;
  size_t page_;
  size_t whole_;
  std::byte* base_;
};

constexpr Op kOps[] = {Op::Sum,    Op::Avg,   Op::Prod,   Op::Min,      Op::Max,
                       Op::BitAnd, Op::BitOr, Op::BitXor, Op::PremulSum};

bool supported(DType dtype, Op op) {
  try {
    require_supported(dtype, op);
    return true;
  } catch (const Unsupported&) {
    return false;
  }
}

void touches_nothing_beside_the_buffers() {
  const double factors[] = {2, 3, 1};
  for (size_t count : {1, 3, 5, 15, 17, 31, 66, 130, 527}) {
    const Fenced a(count * 16), b(count * 16), c(count * 16), d(count * 16);
    for (DType dtype : all_dtypes()) {
      // Placed at either end of their memory, so that the first or the last element touches a fence.
      const Fenced in1(count * size_of(dtype)), in2(count * size_of(dtype)), out(count * size_of(dtype));
      for (Op op : kOps) {
        if (!supported(dtype, op)) continue;
        for (Stores stores : {Stores::Plain, Stores::NonTemporal}) {
          const void* const ends[] = {in1.at_end(), in2.at_end(), in1.at_end()};
          void* const ends_out[] = {out.at_end()};
          reduce_many(dtype, op, {ends, 2}, ends_out, count, factors, 0, stores);
          reduce_many(dtype, op, ends, ends_out, count, factors, 0, stores);
          const void* const starts[] = {in1.at_start(), in2.at_start()};
          void* const starts_out[] = {out.at_start()};
          reduce_many(dtype, op, starts, starts_out, count, factors, 0, stores);
        }
        const Fenced wire(count * size_of(wire_dtype(dtype, op)));
        widen(dtype, op, in1.at_end(), wire.at_end(), count, 2, 3);
        narrow(dtype, op, wire.at_end(), out.at_end(), count, 3);
      }
    }
    for (Stores stores : {Stores::Plain, Stores::NonTemporal}) {
      copy_bytes(a.at_end(), b.at_end(), count * 16, stores);
      copy_bytes(c.at_start(), d.at_end(), count * 16, stores);
    }
  }
}

// In place, and into two places: each destination in turn is one of the sources.
void destinations_may_be_sources() {
  constexpr size_t kCount = 1003;
  for (size_t n : {2, 3}) {
    for (size_t in_place = 0; in_place < n; ++in_place) {
      std::vector<std::vector<float>> buffers(n + 1, std::vector<float>(kCount));
      float sum_of_scales = 0;
      for (size_t k = 0; k < n; ++k) {
        sum_of_scales += static_cast<float>(1 << (4 * k));
        for (size_t i = 0; i < kCount; ++i) buffers[k][i] = static_cast<float>(i << (4 * k));
      }
      std::vector<const void*> from;
      for (size_t k = 0; k < n; ++k) from.push_back(buffers[k].data());
      void* const to[] = {buffers[n].data(), buffers[in_place].data()};
      reduce_many(DType::Float32, Op::Sum, from, to, kCount);
      bool right = true;
      for (size_t i = 0; i < kCount; ++i) {
        const float want = static_cast<float>(i) * sum_of_scales;
        right &= buffers[n][i] == want && buffers[in_place][i] == want;
      }
      check(right,
            "sum of " + std::to_string(n) + " into source " + std::to_string(in_place) + " and beside");
    }
  }
}

// ((s0 + s1) + s2) + ..., which no other order equals here.
void adds_in_the_order_given() {
  for (size_t count : {1, 5, 40, 1000}) {
    const std::vector<float> big(count, 0x1p24f), one(count, 1.0f), minus(count, -0x1p24f);
    std::vector<float> out(count);
    void* const to[] = {out.data()};
    const void* const ones_lost[] = {big.data(), one.data(), minus.data()};
    reduce_many(DType::Float32, Op::Sum, ones_lost, to, count);
    check(out.front() == 0 && out.back() == 0, "2^24 + 1 - 2^24");
    const void* const ones_kept[] = {big.data(), minus.data(), one.data()};
    reduce_many(DType::Float32, Op::Sum, ones_kept, to, count);
    check(out.front() == 1 && out.back() == 1, "2^24 - 2^24 + 1");
  }
}

void names_go_both_ways() {
  check(all_dtypes().size() == 17, "17 dtypes");
  for (DType dtype : all_dtypes()) check(dtype_from_name(name_of(dtype)) == dtype, name_of(dtype));
  for (Op op : kOps) check(op_from_name(name_of(op)) == op, name_of(op));
  check(!dtype_from_name("int128") && !dtype_from_name("float") && !op_from_name("mean"), "unknown names");
}

void errors_say_what_is_wrong() {
  float value = 1;
  const void* const from[] = {&value};
  void* const to[] = {&value};
  check_throws<Unsupported>([] { require_supported(DType::Complex64, Op::Max); }, "max");
  check_throws<Unsupported>([] { wire_dtype(DType::Bool, Op::Avg); }, "bool");
  check_throws<InvalidArgument>([&] { reduce_many(DType::Float32, Op::Sum, {}, to, 1); }, "source");
  check_throws<InvalidArgument>([&] { reduce_many(DType::Float32, Op::PremulSum, from, to, 1); }, "factor");
  check_throws<InvalidArgument>([] { select_kernels("mmx"); }, kernel_names().front());
}

}  // namespace

int main() {
  const std::string best(kernel_name());
  for (std::string_view kernels : kernel_names()) {
    select_kernels(kernels);
    std::printf("kernels: %.*s\n", static_cast<int>(kernels.size()), kernels.data());
    test::run("touches nothing beside the buffers", touches_nothing_beside_the_buffers);
    test::run("destinations may be sources", destinations_may_be_sources);
    test::run("adds in the order given", adds_in_the_order_given);
  }
  select_kernels(best);
  test::run("names go both ways", names_go_both_ways);
  test::run("errors say what is wrong", errors_say_what_is_wrong);
  return test::result();
}
