// The compiled kernels of sum.cu and multicast_sum.cu, as the driver loads them.
#pragma once

namespace tide::device::cuda {

extern "C" const unsigned char tide_sum_image[];
extern "C" const unsigned char tide_multicast_sum_image[];

}  // namespace tide::device::cuda
