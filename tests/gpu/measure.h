// What the GPU benchmarks measure with: times between two points of a stream, medians, JSON text.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"

namespace tide::test {

inline std::string format(const char* text, auto... values) {
  char line[800];
  std::snprintf(line, sizeof line, text, values...);
  return line;
}

inline double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<long>(values.size() / 2));
  return values[values.size() / 2];
}

// Seconds between two points of a stream, which belongs to the GPU that was current when the timer
// was made.
class Timer {
 public:
  Timer() {
    good(cudaEventCreate(&begin_));
    good(cudaEventCreate(&end_));
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  void begin(cudaStream_t stream) { good(cudaEventRecord(begin_, stream)); }
  void end(cudaStream_t stream) { good(cudaEventRecord(end_, stream)); }
  // Waits for the stream to reach the point.
  void wait_for_begin() { good(cudaEventSynchronize(begin_)); }
  bool ended() const {
    const cudaError_t result = cudaEventQuery(end_);
    if (result != cudaErrorNotReady) good(result);
    return result == cudaSuccess;
  }
  // Waits for the end.
  double seconds() {
    good(cudaEventSynchronize(end_));
    float milliseconds = 0;
    good(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds * 1e-3;
  }
  double seconds(cudaStream_t stream, const std::function<void()>& work) {
    begin(stream);
    work();
    end(stream);
    return seconds();
  }

 private:
  cudaEvent_t begin_, end_;
};

}  // namespace tide::test
