// The op, and its form for the CPU.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "adamw.h"

void adamw_cpu(at::TensorList params, at::TensorList grads, at::TensorList moments, at::TensorList squares,
               const std::optional<at::Tensor>& found_inf, double lr, double beta1, double beta2, double epsilon,
               double decay, double bias1, double bias2) {
  if (found_inf && *found_inf->const_data_ptr<float>() == 1) return;
  const Numbers numbers{lr, beta1, beta2, epsilon, decay, bias1, bias2};
  for (size_t k = 0; k < params.size(); k++)
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, params[k].scalar_type(), "adamw", [&] {
      auto *p = params[k].mutable_data_ptr<scalar_t>(), *m = moments[k].mutable_data_ptr<scalar_t>(),
           *v = squares[k].mutable_data_ptr<scalar_t>();
      const auto* g = grads[k].const_data_ptr<scalar_t>();
      for (int64_t i = 0; i < params[k].numel(); i++)
        adamw_element<at::opmath_type<scalar_t>>(p[i], g[i], m[i], v[i], numbers);
    });
}

TORCH_LIBRARY(ci_adamw, library) {
  library.def(
      "step(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] moments, Tensor(c!)[] squares, Tensor? found_inf, "
      "float lr, float beta1, float beta2, float epsilon, float decay, float bias1, float bias2) -> ()");
}

TORCH_LIBRARY_IMPL(ci_adamw, CPU, library) { library.impl("step", adamw_cpu); }
