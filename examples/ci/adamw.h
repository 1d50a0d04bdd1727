// AdamW of one element: the same text for the loop of the CPU and for the kernel of a GPU.
#pragma once
#include <cmath>

#ifdef __CUDACC__
#define BOTH __host__ __device__
#else
#define BOTH
#endif

struct Numbers {
  double lr, beta1, beta2, epsilon, decay, bias1, bias2;
};

// Stored as T, worked out in A.
template <typename A, typename T>
BOTH void adamw_element(T& p, T g, T& m, T& v, const Numbers& x) {
  const A grad = g, moment = A(m) + A(1 - x.beta1) * (grad - A(m));
  const A square = A(v) + A(1 - x.beta2) * (grad * grad - A(v));
  const A ratio = moment / A(x.bias1) / (std::sqrt(square / A(x.bias2)) + A(x.epsilon));
  p = T(A(p) - A(x.lr) * (A(x.decay) * A(p) + ratio));
  m = T(moment);
  v = T(square);
}
