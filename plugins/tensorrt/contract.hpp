//! \file contract.hpp
//! \brief What TensorRT sees of each op: fields, tensors and aliases as tables, and their hash.
//!
//! Everything that a serialized engine keeps of a plugin stands here, so the hash over this text is what an engine and
//! a plugin library must agree on. Kernels may change freely; a field, a tensor, an alias or an op's version may not.
#ifndef TRTFORGE_TENSORRT_CONTRACT_HPP
#define TRTFORGE_TENSORRT_CONTRACT_HPP

#include <NvInferRuntimePlugin.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trtforge::trt
{

constexpr char const* kNAMESPACE = "trtforge";

//! \brief The field by which a plugin declares its outputs in place to TensorRT. Left out, nothing is declared and the
//! caller binds input and output to one address: TensorRT may insert copies for a declared alias, refuses one that the
//! builder's preview feature does not allow, and some of its versions reject engines with one.
constexpr char const* kALIASED = "aliased";

//! \brief One scalar field of a creator. Integers are INT32, reals FLOAT32: the types that ONNX attributes arrive in.
struct Field
{
    char const* name;
    nvinfer1::PluginFieldType type;
    bool required;
    double standard; //!< value when the field is left out
    double minimum;
    double maximum;
    int32_t multiple; //!< integers: a value is a multiple of this
};

//! \brief An op as a plugin.
struct Op
{
    char const* name;
    char const* version;
    std::vector<Field> fields;
    std::vector<char const*> inputs; //!< "name type shape"; optional ones say by which field they are present
    std::vector<char const*> outputs;
    std::vector<char const*> aliases; //!< "output input": outputs that are updates of an input in place
};

Op const& pagedAttentionOp();
Op const& eagleTreeBuildOp();
Op const& eagleAcceptOp();
Op const& pagedKVMoveOp();

//! \brief All ops, in a fixed order.
std::vector<Op const*> const& ops();

//! \brief The tables as text, one line a fact; the hash is over these bytes.
std::string const& contractText();

//! \brief FNV-1a (64 bits) of contractText() as 16 hexadecimal digits.
std::string const& abiHash();

} // namespace trtforge::trt

#endif // TRTFORGE_TENSORRT_CONTRACT_HPP
