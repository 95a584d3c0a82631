// The measurement, the same for every library: fill, meet, time, check; rows of JSON on rank 0's output.
//
// A library is anything with
//   float* allocate(size_t count);                    the rank's own buffer, in place of the library's
//   choosing void allreduce(float* buffer, size_t count);      sum over the ranks, in place float
//   expected(size_t index, uint64_t iteration)  what the buffer must hold afterwards
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "harness.h"

namespace bench {

// One way of a cache line: about 15 ns between the two threads of one core, 25-35 through a shared L3 cache,
// 100 and more between caches. A virtual machine's processors may move from one of these states to another at
// any moment.
inline constexpr double kSameCoreNanoseconds = 20;
inline constexpr double kNearNanoseconds = 60;
inline constexpr double kSegmentSeconds = 0.05;   // between two probes
inline constexpr size_t kBatchedBelow = 4 << 10;  // bytes: one call is too short for the clock
inline constexpr size_t kBatch = 500;

// Distinct for each rank, index and iteration nearby, and every sum over up to 64 ranks is exact in float32.
inline uint32_t pattern(size_t index) {
  return (static_cast<uint32_t>(index) ^ static_cast<uint32_t>(index >> 12)) & 4095;
}

inline float contribution(int rank, size_t index, uint64_t iteration) {
  return static_cast<float>(pattern(index) * static_cast<uint32_t>(rank + 1) + static_cast<uint32_t>(rank) +
                            static_cast<uint32_t>(iteration & 7));
}

inline float sum_of_contributions(int ranks, size_t index, uint64_t iteration) {
  uint32_t n = static_cast<uint32_t>(ranks);
  return static_cast<float>(pattern(index) * (n * (n + 1) / 2) + n * (n - 1) / 2 +
                            n * static_cast<uint32_t>(iteration & 7));
}

inline float* private_buffer(size_t count) {
  constexpr size_t kPage = 4096;
  void* memory = std::aligned_alloc(kPage, (count * sizeof(float) + kPage - 1) / kPage * kPage);
  if (!memory) throw std::runtime_error("no memory for the buffer");
  return static_cast<float*>(memory);
}

class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 1; i + 1 < argc; i += 2) values_[argv[i]] = argv[i + 1];
    if (argc % 2 == 0) throw std::runtime_error("arguments come as pairs: --name value");
  }
  std::string text(const std::string& name) const {
    auto found = values_.find(name);
    if (found == values_.end()) throw std::runtime_error("missing argument " + name);
    return found->second;
  }
  int integer(const std::string& name) const { return std::stoi(text(name)); }
  double real(const std::string& name) const { return std::stod(text(name)); }
  std::vector<size_t> sizes() const {
    std::vector<size_t> sizes;
    std::stringstream list(text("--sizes"));
    for (std::string one; std::getline(list, one, ',');) sizes.push_back(std::stoull(one));
    if (sizes.empty()) throw std::runtime_error("--sizes is empty");
    return sizes;
  }

 private:
  std::map<std::string, std::string> values_;
};

inline Harness make_harness(const Arguments& arguments, int rank, int ranks) {
  return Harness(arguments.text("--page"), rank, ranks, arguments.integer("--processors"));
}

template <class Library>
class Measurement {
 public:
  Measurement(Harness& harness, Library& library, const Arguments& arguments)
      : harness_(harness),
        library_(library),
        seconds_(arguments.real("--seconds")),
        min_samples_(static_cast<size_t>(arguments.integer("--min-samples"))),
        patience_(arguments.real("--patience")) {
    std::vector<size_t> sizes = arguments.sizes();
    buffer_ = library.allocate(*std::max_element(sizes.begin(), sizes.end()) / sizeof(float));
    for (size_t bytes : sizes) {
      if (!measure(bytes)) break;
    }
  }

 private:
  // False when a call takes longer than anyone wants to wait for; larger sizes are then not tried.
  bool measure(size_t bytes) {
    count_ = bytes / sizeof(float);
    wrong_ = 0;
    batch_ = 1;
    sample();
    check();
    double least = sample();
    for (int again = 0; again < 2 && least > patience_; ++again) least = std::min(least, sample());
    if (least > patience_) {
      if (harness_.rank() == 0) std::printf("{\"bytes\": %zu, \"gave_up_us\": %.0f}\n", bytes, least * 1e6);
      return false;
    }
    warm_up(bytes);

    std::map<std::string, std::vector<double>> samples;
    std::vector<double> probes{harness_.probe()};
    size_t taken = 0;
    for (double end = seconds_now() + seconds_;
         harness_.agree(taken < min_samples_ || seconds_now() < end);) {
      std::vector<double> segment;
      double segment_end = seconds_now() + kSegmentSeconds;
      do segment.push_back(sample());
      while (harness_.agree(seconds_now() < segment_end));
      taken += segment.size();
      probes.push_back(harness_.probe());
      std::vector<double>& same_state = samples[state(probes.end()[-2], probes.back())];
      same_state.insert(same_state.end(), segment.begin(), segment.end());
    }
    check();
    uint64_t wrong = harness_.total(wrong_);
    if (harness_.rank() == 0) {
      for (auto& [name, values] : samples) print(bytes, name, values, probes, wrong);
    }
    return true;
  }

  // Also finds how many calls make a sample: many of the short ones, unless ranks that spin for a whole time
  // slice of the scheduler make even those long.
  void warm_up(size_t bytes) {
    batch_ = bytes < kBatchedBelow ? 20 : 1;
    double least = std::min(sample(), sample());
    if (bytes < kBatchedBelow) batch_ = harness_.agree(least < 20e-6 ? kBatch : 20);
    double end = seconds_now() + seconds_ / 10;
    while (harness_.agree(seconds_now() < end)) sample();
  }

  static std::string state(double nanoseconds) {
    if (nanoseconds < kSameCoreNanoseconds) return "core";
    return nanoseconds < kNearNanoseconds ? "near" : "far";
  }

  static std::string state(double before, double after) {
    return state(before) == state(after) ? state(before) : "mixed";
  }

  // Seconds of one call, at the slowest rank. Filling is part of the time where calls are batched, else not.
  double sample() {
    double start = 0;
    if (batch_ == 1) {
      fill();
      harness_.barrier();
      start = seconds_now();
      library_.allreduce(buffer_, count_);
    } else {
      harness_.barrier();
      start = seconds_now();
      for (size_t call = 0; call < batch_; ++call) {
        fill();
        library_.allreduce(buffer_, count_);
      }
    }
    return harness_.slowest(seconds_now() - start) / static_cast<double>(batch_);
  }

  void fill() {
    ++iteration_;
    for (size_t i = 0; i < count_; ++i) buffer_[i] = contribution(harness_.rank(), i, iteration_);
  }

  void check() {
    for (size_t i = 0; i < count_; ++i) wrong_ += buffer_[i] != library_.expected(i, iteration_);
  }

  void print(size_t bytes, const std::string& state, std::vector<double>& values,
             const std::vector<double>& probes, uint64_t wrong) const {
    std::sort(values.begin(), values.end());
    auto quantile = [&](double q) {
      return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)] * 1e6;
    };
    auto [least, most] = std::minmax_element(probes.begin(), probes.end());
    std::printf(
        "{\"bytes\": %zu, \"state\": \"%s\", \"samples\": %zu, \"calls_per_sample\": %zu, \"min_us\": %.4f, "
        "\"median_us\": %.4f, \"p99_us\": %.4f, \"wrong\": %llu, \"probe_min_ns\": %.1f, \"probe_max_ns\": "
        "%.1f}\n",
        bytes, state.c_str(), values.size(), batch_, quantile(0), quantile(0.5), quantile(0.99),
        static_cast<unsigned long long>(wrong), *least, *most);
    std::fflush(stdout);
  }

  Harness& harness_;
  Library& library_;
  const double seconds_;
  const size_t min_samples_;
  const double patience_;  // seconds
  float* buffer_ = nullptr;
  size_t count_ = 0, batch_ = 1;
  uint64_t iteration_ = 0, wrong_ = 0;
};

// main() of every program: an error is a sentence and a failing exit code.
template <class Body>
int guarded_main(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::fflush(stderr);
    std::_Exit(1);  // the library's own clean-up might wait for ranks that still wait for us
  }
}

}  // namespace bench
