#include "plugin.hpp"

#include "device.hpp"
#include "report.hpp"

#include "trtforge/host_abi.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <stdexcept>

namespace trtforge::trt
{

using nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

namespace
{

constexpr int32_t kSUCCESS = 0;
constexpr int32_t kFAILURE = -1;
//! What types, shapes and counts of tensors are refused with.
constexpr char const* kSHAPE_CODE = "TF-OPS-204: ";

std::string dimsText(Dims const& dims)
{
    std::ostringstream text;
    text << '[';
    for (int32_t i = 0; i < dims.nbDims; ++i)
    {
        text << (i == 0 ? "" : ", ");
        if (dims.d[i] < 0)
        {
            text << '?';
        }
        else
        {
            text << dims.d[i];
        }
    }
    text << ']';
    return text.str();
}

std::string expectedText(Expected const& expected)
{
    Dims dims{};
    dims.nbDims = static_cast<int32_t>(expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
    {
        dims.d[i] = expected[i];
    }
    return dimsText(dims);
}

Dims constants(DimsExprs const& expressions)
{
    Dims dims{};
    dims.nbDims = expressions.nbDims;
    for (int32_t i = 0; i < expressions.nbDims; ++i)
    {
        dims.d[i] = expressions.d[i]->isConstant() ? expressions.d[i]->getConstantValue() : -1;
    }
    return dims;
}

} // namespace

int32_t launcherType(DataType type)
{
    switch (type)
    {
    case DataType::kFLOAT: return TRTFORGE_FLOAT32;
    case DataType::kHALF: return TRTFORGE_FLOAT16;
    case DataType::kBF16: return TRTFORGE_BFLOAT16;
    case DataType::kFP8: return TRTFORGE_FLOAT8_E4M3;
    default: throw std::invalid_argument("tensor type " + std::to_string(static_cast<int32_t>(type)) + " has no kernels");
    }
}

bool isActivation(DataType type)
{
    return type == DataType::kFLOAT || type == DataType::kHALF || type == DataType::kBF16;
}

bool isPool(DataType type)
{
    return isActivation(type) || type == DataType::kFP8;
}

size_t tensorBytes(PluginTensorDesc const& tensor)
{
    size_t bytes = 4;
    switch (tensor.type)
    {
    case DataType::kHALF:
    case DataType::kBF16: bytes = 2; break;
    case DataType::kFP8:
    case DataType::kINT8:
    case DataType::kBOOL:
    case DataType::kUINT8: bytes = 1; break;
    case DataType::kINT64: bytes = 8; break;
    default: break;
    }
    for (int32_t i = 0; i < tensor.dims.nbDims; ++i)
    {
        bytes *= static_cast<size_t>(tensor.dims.d[i]);
    }
    return bytes;
}

void checkBlockSize(char const* tensor, int64_t slots)
{
    if (slots >= 0 && slots != 16 && slots != 32 && slots != 64 && slots != 128)
    {
        throw std::invalid_argument(std::string(tensor) + " has blocks of " + std::to_string(slots)
            + " slots; they must have 16, 32, 64 or 128");
    }
}

void checkRows(char const* tensor, Dims const& wanted, Dims const& given)
{
    if (wanted.d[0] >= 0 && given.d[0] >= 0 && wanted.d[0] != given.d[0])
    {
        throw std::invalid_argument(std::string(tensor) + " has " + std::to_string(given.d[0])
            + " rows; it must have " + std::to_string(wanted.d[0]));
    }
}

Plugin::Plugin(Op const& op, Fields const& fields)
    : mFields(fields)
    , mOp(op)
    , mTimingId(std::string(op.name) + '/' + op.version + ':' + fields.text())
{
}

template <typename TResult, typename TBody>
TResult Plugin::guarded(TResult failure, TBody&& body) const noexcept
{
    try
    {
        return body();
    }
    catch (std::exception const& error)
    {
        std::string const what = error.what();
        reportError(what.rfind("TF-", 0) == 0 ? what : std::string(kSHAPE_CODE) + mOp.name + ": " + what);
    }
    catch (...)
    {
        reportError(std::string(mOp.name) + ": an unknown error");
    }
    return failure;
}

nvinfer1::IPluginCapability* Plugin::getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept
{
    switch (type)
    {
    case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuildV2*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
    }
    return nullptr;
}

nvinfer1::IPluginV3* Plugin::clone() noexcept
{
    return guarded<nvinfer1::IPluginV3*>(nullptr,
        [this]
        {
            std::unique_ptr<Plugin> made = copy();
            made->enterPhase(mPhase);
            return made.release();
        });
}

nvinfer1::AsciiChar const* Plugin::getPluginName() const noexcept
{
    return mOp.name;
}

nvinfer1::AsciiChar const* Plugin::getPluginVersion() const noexcept
{
    return mOp.version;
}

nvinfer1::AsciiChar const* Plugin::getPluginNamespace() const noexcept
{
    return kNAMESPACE;
}

int32_t Plugin::getNbOutputs() const noexcept
{
    return guarded<int32_t>(0, [this] { return nbOutputs(); });
}

void Plugin::checkCount(int32_t inputs, int32_t outputs) const
{
    if (inputs != nbInputs() || outputs != nbOutputs())
    {
        throw std::invalid_argument("there are " + std::to_string(inputs) + " inputs and " + std::to_string(outputs)
            + " outputs; with " + mFields.text() + " there must be " + std::to_string(nbInputs()) + " and "
            + std::to_string(nbOutputs()));
    }
}

void Plugin::checkDims(std::vector<Dims> const& dims) const
{
    std::vector<Expected> const wanted = expected();
    for (size_t i = 0; i < wanted.size(); ++i)
    {
        bool fits = dims[i].nbDims == static_cast<int32_t>(wanted[i].size());
        for (size_t d = 0; fits && d < wanted[i].size(); ++d)
        {
            fits = wanted[i][d] < 0 || dims[i].d[d] < 0 || wanted[i][d] == dims[i].d[d];
        }
        if (!fits)
        {
            throw std::invalid_argument(tensorName(static_cast<int32_t>(i)) + " has shape " + dimsText(dims[i])
                + "; it must be " + expectedText(wanted[i]));
        }
    }
    checkRelations(dims);
}

int32_t Plugin::getOutputDataTypes(
    DataType* outputTypes, int32_t nbOutputs, DataType const* inputTypes, int32_t nbInputs) const noexcept
{
    return guarded(kFAILURE,
        [&]
        {
            checkCount(nbInputs, nbOutputs);
            std::vector<DataType> types;
            for (int32_t i = 0; i < nbInputs; ++i)
            {
                types.push_back(inputTypes[i]);
                if (!typeFits(i, types))
                {
                    throw std::invalid_argument(tensorName(i) + " has type "
                        + std::to_string(static_cast<int32_t>(inputTypes[i])) + " (a nvinfer1::DataType), which "
                        + "has no kernels or does not go with the inputs before it");
                }
            }
            for (int32_t i = 0; i < nbOutputs; ++i)
            {
                outputTypes[i] = outputType(i, inputTypes);
            }
            return kSUCCESS;
        });
}

int32_t Plugin::getOutputShapes(DimsExprs const* inputs, int32_t nbInputs, DimsExprs const* /*shapeInputs*/,
    int32_t nbShapeInputs, DimsExprs* outputs, int32_t nbOutputs, nvinfer1::IExprBuilder& exprBuilder) noexcept
{
    return guarded(kFAILURE,
        [&]
        {
            checkCount(nbInputs + nbShapeInputs, nbOutputs);
            std::vector<Dims> dims;
            for (int32_t i = 0; i < nbInputs; ++i)
            {
                dims.push_back(constants(inputs[i]));
            }
            checkDims(dims);
            for (int32_t i = 0; i < nbOutputs; ++i)
            {
                outputShape(i, inputs, outputs[i], exprBuilder);
            }
            return kSUCCESS;
        });
}

bool Plugin::supportsFormatCombination(
    int32_t pos, DynamicPluginTensorDesc const* inOut, int32_t nbInputs, int32_t nbOutputs) noexcept
{
    return guarded(false,
        [&]
        {
            checkCount(nbInputs, nbOutputs);
            if (inOut[pos].desc.format != nvinfer1::TensorFormat::kLINEAR)
            {
                return false;
            }
            std::vector<DataType> types;
            for (int32_t i = 0; i < std::min(pos + 1, nbInputs); ++i)
            {
                types.push_back(inOut[i].desc.type);
            }
            if (pos < nbInputs)
            {
                return typeFits(pos, types);
            }
            return inOut[pos].desc.type == outputType(pos - nbInputs, types.data());
        });
}

int32_t Plugin::configurePlugin(
    DynamicPluginTensorDesc const* in, int32_t nbInputs, DynamicPluginTensorDesc const* /*out*/, int32_t nbOutputs) noexcept
{
    return guarded(kFAILURE,
        [&]
        {
            checkCount(nbInputs, nbOutputs);
            for (auto const bound : {&DynamicPluginTensorDesc::min, &DynamicPluginTensorDesc::opt,
                     &DynamicPluginTensorDesc::max})
            {
                std::vector<Dims> dims;
                for (int32_t i = 0; i < nbInputs; ++i)
                {
                    dims.push_back(in[i].*bound);
                }
                checkDims(dims);
            }
            return kSUCCESS;
        });
}

size_t Plugin::getWorkspaceSize(DynamicPluginTensorDesc const* inputs, int32_t nbInputs,
    DynamicPluginTensorDesc const* /*outputs*/, int32_t nbOutputs) const noexcept
{
    return guarded<size_t>(0,
        [&]
        {
            checkCount(nbInputs, nbOutputs);
            return workspace(inputs);
        });
}

int32_t Plugin::getAliasedInput(int32_t outputIndex) noexcept
{
    return guarded<int32_t>(-1, [&] { return mFields.isSet(kALIASED) ? aliasOf(outputIndex) : -1; });
}

char const* Plugin::getTimingCacheID() noexcept
{
    return mTimingId.c_str();
}

char const* Plugin::getMetadataString() noexcept
{
    return mTimingId.c_str();
}

int32_t Plugin::onShapeChange(
    PluginTensorDesc const* in, int32_t nbInputs, PluginTensorDesc const* /*out*/, int32_t nbOutputs) noexcept
{
    return guarded(kFAILURE,
        [&]
        {
            checkCount(nbInputs, nbOutputs);
            std::vector<Dims> dims;
            for (int32_t i = 0; i < nbInputs; ++i)
            {
                dims.push_back(in[i].dims);
            }
            checkDims(dims);
            return kSUCCESS;
        });
}

void Plugin::clearOutputs(PluginTensorDesc const* outputDesc, void const* const* inputs, void* const* outputs,
    cuda::Stream stream) const
{
    void const* const* const end = inputs + nbInputs();
    for (int32_t i = 0; i < nbOutputs(); ++i)
    {
        if (std::find(inputs, end, outputs[i]) == end)
        {
            clearBytes(outputs[i], tensorBytes(outputDesc[i]), stream);
        }
    }
}

int32_t Plugin::enqueue(PluginTensorDesc const* inputDesc, PluginTensorDesc const* outputDesc,
    void const* const* inputs, void* const* outputs, void* workspace, cudaStream_t stream) noexcept
{
    return guarded(kFAILURE,
        [&]
        {
            if (mPhase == nvinfer1::TensorRTPhase::kBUILD)
            {
                // The builder times layers on tensors whose contents mean nothing: there are no requests to attend to.
                clearOutputs(outputDesc, inputs, outputs, stream);
                return kSUCCESS;
            }
            cuda::Status const status = run(inputDesc, inputs, outputs, workspace, stream);
            if (!status.ok())
            {
                throw std::runtime_error(
                    "TF-OPS-" + std::to_string(100 + status.code) + ": " + mOp.name + ": " + status.message);
            }
            return kSUCCESS;
        });
}

nvinfer1::IPluginV3* Plugin::attachToContext(nvinfer1::IPluginResourceContext* /*context*/) noexcept
{
    return clone(); // a plugin holds nothing but its fields
}

nvinfer1::PluginFieldCollection const* Plugin::getFieldsToSerialize() noexcept
{
    return guarded<nvinfer1::PluginFieldCollection const*>(nullptr, [this] { return mFields.serialize(); });
}

Creator::Creator(Op const& op, Make make)
    : mOp(op)
    , mMake(make)
{
    for (Field const& field : op.fields)
    {
        mNames.emplace_back(field.name, nullptr, field.type, 1);
    }
    mCollection.nbFields = static_cast<int32_t>(mNames.size());
    mCollection.fields = mNames.data();
}

nvinfer1::AsciiChar const* Creator::getPluginName() const noexcept
{
    return mOp.name;
}

nvinfer1::AsciiChar const* Creator::getPluginVersion() const noexcept
{
    return mOp.version;
}

nvinfer1::AsciiChar const* Creator::getPluginNamespace() const noexcept
{
    return kNAMESPACE;
}

nvinfer1::PluginFieldCollection const* Creator::getFieldNames() noexcept
{
    return &mCollection;
}

nvinfer1::IPluginV3* Creator::createPlugin(nvinfer1::AsciiChar const* name,
    nvinfer1::PluginFieldCollection const* fields, nvinfer1::TensorRTPhase phase) noexcept
{
    std::string const layer = name == nullptr || *name == '\0' ? "" : " (layer " + std::string(name) + ')';
    try
    {
        std::unique_ptr<Plugin> made = mMake(Fields(mOp, fields));
        made->enterPhase(phase);
        return made.release();
    }
    catch (std::exception const& error)
    {
        std::string const what = error.what();
        reportError((what.rfind("TF-", 0) == 0 ? what : "TF-OPS-203: " + what) + layer);
    }
    catch (...)
    {
        reportError(std::string(mOp.name) + ": an unknown error" + layer);
    }
    return nullptr;
}

} // namespace trtforge::trt
