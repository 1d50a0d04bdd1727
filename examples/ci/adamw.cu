// The op's form for a GPU.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "adamw.h"

template <typename T>
__global__ void adamw_kernel(T* p, const T* g, T* m, T* v, int64_t n, const float* found_inf, Numbers numbers) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n || (found_inf && *found_inf == 1)) return;
  adamw_element<at::opmath_type<T>>(p[i], g[i], m[i], v[i], numbers);
}

void adamw_cuda(at::TensorList params, at::TensorList grads, at::TensorList moments, at::TensorList squares,
                const std::optional<at::Tensor>& found_inf, double lr, double beta1, double beta2, double epsilon,
                double decay, double bias1, double bias2) {
  const Numbers numbers{lr, beta1, beta2, epsilon, decay, bias1, bias2};
  const float* flag = found_inf ? found_inf->const_data_ptr<float>() : nullptr;
  for (size_t k = 0; k < params.size(); k++) {
    const int64_t n = params[k].numel();
    if (n == 0) continue;
    const c10::cuda::CUDAGuard guard(params[k].device());
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, params[k].scalar_type(), "adamw", [&] {
      adamw_kernel<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
          params[k].mutable_data_ptr<scalar_t>(), grads[k].const_data_ptr<scalar_t>(),
          moments[k].mutable_data_ptr<scalar_t>(), squares[k].mutable_data_ptr<scalar_t>(), n, flag, numbers);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  }
}

TORCH_LIBRARY_IMPL(ci_adamw, CUDA, library) { library.impl("step", adamw_cuda); }
