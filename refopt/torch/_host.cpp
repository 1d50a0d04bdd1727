// Queries of a step of refopt.torch about many tensors, without creating Python objects for their gradients. The names
// are those of refopt/torch/host.py, which documents them and has Python versions; its `accelerate` compiles this.

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>
#include <vector>

namespace py = pybind11;
using at::Tensor;

namespace {

// The present tensor of an object in a list: `swap_tensors` may have exchanged it.
const Tensor& at_index(const py::handle& tensors, Py_ssize_t i) {
  PyObject* item = PyList_GET_ITEM(tensors.ptr(), i);
  if (!THPVariable_Check(item)) throw py::type_error("expected a list of tensors");
  return THPVariable_Unpack(item);
}

// Properties of a tensor that a plan assumes, apart from its address.
class Kind {
 public:
  Kind() = default;
  explicit Kind(const Tensor& x)
      : known_(true), keys_(x.key_set()), sizes_(x.sizes()), strides_(x.strides()), dtype_(x.scalar_type()),
        device_(x.device()) {}

  bool operator()(const Tensor& x) const {
    return known_ && x.key_set() == keys_ && x.sizes() == at::IntArrayRef(sizes_) &&
           x.strides() == at::IntArrayRef(strides_) && x.scalar_type() == dtype_ && x.device() == device_;
  }

 private:
  bool known_ = false;
  c10::DispatchKeySet keys_;  // of layout, negative bit, and subclasses that dispatch in Python
  at::DimVector sizes_, strides_;
  at::ScalarType dtype_ = at::kFloat;
  at::Device device_ = at::kCPU;
};

class Steady {
 public:
  explicit Steady(const py::list& tensors) {
    for (Py_ssize_t i = 0; i < static_cast<Py_ssize_t>(tensors.size()); ++i) {
      const Tensor& x = at_index(tensors, i);
      places_.push_back(x.data_ptr());
      kinds_.emplace_back(x);
    }
  }

  bool operator()(const py::list& tensors) const {
    if (tensors.size() != kinds_.size()) return false;
    for (size_t i = 0; i < kinds_.size(); ++i)
      if (!same(i, at_index(tensors, i))) return false;
    return true;
  }

  bool same(size_t i, const Tensor& x) const { return kinds_[i](x) && x.data_ptr() == places_[i]; }

 private:
  std::vector<void*> places_;
  std::vector<Kind> kinds_;
};

class Reader {
 public:
  Reader(const py::list& params, const Steady* steady)
      : places(params.size()), present(params.size()), params_(params), steady_(steady), now_(params.size()),
        there_(params.size()), kinds_(params.size()) {
    std::memset(places.mutable_data(), 0, places.nbytes());
    std::memset(present.mutable_data(), 0, present.nbytes());
  }

  py::object compare(const py::object& grads) {
    bool others = false;
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (steady_ && !steady_->same(i, at_index(params_, i))) return py::none();
      const Tensor& grad = gradient(grads, i);
      if (grad.defined() && !kinds_[i](grad)) return py::none();
      others |= grad.defined() != (present.data()[i] != 0);
      now_[i] = address(grad);
      there_[i] = grad.defined();
    }
    const bool moved = others || std::memcmp(places.data(), now_.data(), places.nbytes()) != 0;
    if (moved) std::memcpy(places.mutable_data(), now_.data(), places.nbytes());
    if (others) std::memcpy(present.mutable_data(), there_.data(), present.nbytes());
    return py::int_(others ? 2 : moved ? 1 : 0);
  }

  void note(const py::list& grads, const std::vector<size_t>& unlike) {
    for (size_t i = 0; i < kinds_.size(); ++i) {
      const Tensor& grad = gradient(grads, i);
      places.mutable_data()[i] = address(grad);
      present.mutable_data()[i] = grad.defined();
      if (grad.defined()) kinds_[i] = Kind(grad);
    }
    for (size_t i : unlike) kinds_.at(i) = Kind();
  }

  py::array_t<int64_t> places;
  py::array_t<bool> present;

 private:
  // One of the gradients given, or a parameter's.
  const Tensor& gradient(const py::object& grads, size_t i) const {
    static const Tensor none;
    if (grads.is_none()) return at_index(params_, i).grad();
    return PyList_GET_ITEM(grads.ptr(), i) == Py_None ? none : at_index(grads, i);
  }

  static int64_t address(const Tensor& grad) {
    return grad.defined() ? reinterpret_cast<int64_t>(grad.data_ptr()) : 0;
  }

  py::list params_;
  const Steady* steady_;
  std::vector<int64_t> now_;
  std::vector<uint8_t> there_;
  std::vector<Kind> kinds_;
};

bool same(const py::list& some, const py::list& others) {
  if (some.size() != others.size()) return false;
  for (size_t i = 0; i < some.size(); ++i)
    if (PyList_GET_ITEM(some.ptr(), i) != PyList_GET_ITEM(others.ptr(), i)) return false;
  return true;
}

py::array_t<int64_t> versions(const py::list& tensors) {
  py::array_t<int64_t> found(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) found.mutable_data()[i] = at_index(tensors, i)._version();
  return found;
}

void increment_version(const py::list& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) torch::autograd::impl::bump_version(at_index(tensors, i));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::class_<Steady>(module, "Steady").def(py::init<const py::list&>()).def("__call__", &Steady::operator());
  py::class_<Reader>(module, "Reader")
      .def(py::init<const py::list&, const Steady*>(), py::arg("params"), py::arg("steady") = py::none(),
           py::keep_alive<1, 3>())
      .def("compare", &Reader::compare, py::arg("grads") = py::none())
      .def("note", &Reader::note)
      .def_readonly("places", &Reader::places)
      .def_readonly("present", &Reader::present);
  module.def("same", &same);
  module.def("versions", &versions);
  module.def("increment_version", &increment_version);
}
