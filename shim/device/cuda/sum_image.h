// The compiled kernels of sum.cu, as the driver loads them.
#pragma once

namespace tide::device::cuda {

extern "C" const unsigned char tide_sum_image[];

}  // namespace tide::device::cuda
