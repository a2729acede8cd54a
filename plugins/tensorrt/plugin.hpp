//! \file plugin.hpp
//! \brief What the plugins share: capabilities, creators, formats, shape checks, and where exceptions end.
//!
//! TensorRT calls every method as noexcept. The methods here catch what the ops throw, report it (report.hpp) and
//! return TensorRT's failure code, so a refusal is a sentence in the log and never a crash.
#ifndef TRTFORGE_TENSORRT_PLUGIN_HPP
#define TRTFORGE_TENSORRT_PLUGIN_HPP

#include "contract.hpp"
#include "fields.hpp"

#include "trtforge/cuda/launchers.hpp"

#include <NvInferRuntime.h>

#include <memory>
#include <string>
#include <vector>

namespace trtforge::trt
{

//! \brief One dimension that an op expects: a number, or -1 for any.
using Expected = std::vector<int64_t>;

//! \brief The part of a plugin that does not depend on the op.
class Plugin : public nvinfer1::IPluginV3,
               public nvinfer1::IPluginV3OneCore,
               public nvinfer1::IPluginV3OneBuildV2,
               public nvinfer1::IPluginV3OneRuntime
{
public:
    Plugin(Op const& op, Fields const& fields);

    //! \brief Takes the phase that a creator was given; clones keep it.
    void enterPhase(nvinfer1::TensorRTPhase phase)
    {
        mPhase = phase;
    }

    // IPluginV3
    nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept final;
    nvinfer1::IPluginV3* clone() noexcept final;

    // IPluginV3OneCore
    nvinfer1::AsciiChar const* getPluginName() const noexcept final;
    nvinfer1::AsciiChar const* getPluginVersion() const noexcept final;
    nvinfer1::AsciiChar const* getPluginNamespace() const noexcept final;

    // IPluginV3OneBuildV2
    int32_t getNbOutputs() const noexcept final;
    int32_t getOutputDataTypes(nvinfer1::DataType* outputTypes, int32_t nbOutputs, nvinfer1::DataType const* inputTypes,
        int32_t nbInputs) const noexcept final;
    int32_t getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t nbInputs, nvinfer1::DimsExprs const* shapeInputs,
        int32_t nbShapeInputs, nvinfer1::DimsExprs* outputs, int32_t nbOutputs,
        nvinfer1::IExprBuilder& exprBuilder) noexcept final;
    bool supportsFormatCombination(int32_t pos, nvinfer1::DynamicPluginTensorDesc const* inOut, int32_t nbInputs,
        int32_t nbOutputs) noexcept final;
    int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const* in, int32_t nbInputs,
        nvinfer1::DynamicPluginTensorDesc const* out, int32_t nbOutputs) noexcept final;
    size_t getWorkspaceSize(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t nbInputs,
        nvinfer1::DynamicPluginTensorDesc const* outputs, int32_t nbOutputs) const noexcept final;
    int32_t getAliasedInput(int32_t outputIndex) noexcept final;
    char const* getTimingCacheID() noexcept final;
    char const* getMetadataString() noexcept final;

    // IPluginV3OneRuntime
    int32_t onShapeChange(nvinfer1::PluginTensorDesc const* in, int32_t nbInputs,
        nvinfer1::PluginTensorDesc const* out, int32_t nbOutputs) noexcept final;
    int32_t enqueue(nvinfer1::PluginTensorDesc const* inputDesc, nvinfer1::PluginTensorDesc const* outputDesc,
        void const* const* inputs, void* const* outputs, void* workspace, cudaStream_t stream) noexcept final;
    nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept final;
    nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept final;

protected:
    // What an op says. All of these may throw; std::invalid_argument is the user's fault.

    virtual std::unique_ptr<Plugin> copy() const = 0;
    virtual int32_t nbInputs() const = 0;
    virtual int32_t nbOutputs() const = 0;
    //! \brief The name of the input or output at \p pos (inputs first), for messages.
    virtual std::string tensorName(int32_t pos) const = 0;
    //! \brief Whether the tensor at \p pos may have this type, given the types of the inputs before it.
    virtual bool typeFits(int32_t pos, std::vector<nvinfer1::DataType> const& types) const = 0;
    //! \brief The type of an output, given the inputs' types.
    virtual nvinfer1::DataType outputType(int32_t index, nvinfer1::DataType const* inputTypes) const = 0;
    //! \brief What the dimensions of each input must be as far as the fields say it.
    virtual std::vector<Expected> expected() const = 0;
    //! \brief Relations that \p dims (inputs; -1 for what is not known) must keep beyond expected().
    virtual void checkRelations(std::vector<nvinfer1::Dims> const& dims) const = 0;
    virtual void outputShape(
        int32_t index, nvinfer1::DimsExprs const* inputs, nvinfer1::DimsExprs& output, nvinfer1::IExprBuilder& build)
        const = 0;
    //! \brief The input that an output updates in place, or -1.
    virtual int32_t aliasOf(int32_t output) const = 0;
    //! \brief Bytes for the largest shapes of a profile.
    virtual size_t workspace(nvinfer1::DynamicPluginTensorDesc const* inputs) const = 0;
    virtual cuda::Status run(nvinfer1::PluginTensorDesc const* inputDesc, void const* const* inputs,
        void* const* outputs, void* workspace, cuda::Stream stream) const = 0;

    Fields mFields;

private:
    //! \brief Refuses shapes (inputs only) that contradict the fields or each other.
    void checkDims(std::vector<nvinfer1::Dims> const& dims) const;
    void checkCount(int32_t inputs, int32_t outputs) const;
    //! \brief Runs \p body; reports what it throws as "op: …" and returns \p failure.
    template <typename TResult, typename TBody>
    TResult guarded(TResult failure, TBody&& body) const noexcept;
    //! \brief Zeros in every output that is not an input's memory.
    void clearOutputs(nvinfer1::PluginTensorDesc const* outputDesc, void const* const* inputs, void* const* outputs,
        cuda::Stream stream) const;

    nvinfer1::TensorRTPhase mPhase{nvinfer1::TensorRTPhase::kRUNTIME};
    Op const& mOp;
    std::string mTimingId;
};

//! \brief A creator of one op; its plugins validate their fields.
class Creator : public nvinfer1::IPluginCreatorV3One
{
public:
    using Make = std::unique_ptr<Plugin> (*)(Fields const&);

    Creator(Op const& op, Make make);

    nvinfer1::AsciiChar const* getPluginName() const noexcept final;
    nvinfer1::AsciiChar const* getPluginVersion() const noexcept final;
    nvinfer1::AsciiChar const* getPluginNamespace() const noexcept final;
    nvinfer1::PluginFieldCollection const* getFieldNames() noexcept final;
    nvinfer1::IPluginV3* createPlugin(nvinfer1::AsciiChar const* name, nvinfer1::PluginFieldCollection const* fields,
        nvinfer1::TensorRTPhase phase) noexcept final;

private:
    Op const& mOp;
    Make mMake;
    std::vector<nvinfer1::PluginField> mNames;
    nvinfer1::PluginFieldCollection mCollection{};
};

std::unique_ptr<Plugin> makePagedAttention(Fields const& fields);
std::unique_ptr<Plugin> makeEagleTreeBuild(Fields const& fields);
std::unique_ptr<Plugin> makeEagleAccept(Fields const& fields);
std::unique_ptr<Plugin> makePagedKvMove(Fields const& fields);

//! \brief The launchers' code of a TensorRT type; throws std::invalid_argument for one without kernels.
int32_t launcherType(nvinfer1::DataType type);

//! \brief float32, float16 or bfloat16.
bool isActivation(nvinfer1::DataType type);

//! \brief An activation type or FP8 E4M3.
bool isPool(nvinfer1::DataType type);

//! \brief Bytes of a tensor whose dimensions are known.
size_t tensorBytes(nvinfer1::PluginTensorDesc const& tensor);

//! \brief Refuses slots of a pool block that no kernel is written for; -1 passes.
void checkBlockSize(char const* tensor, int64_t slots);

//! \brief Refuses another number of rows than \p wanted has; numbers that are not known pass.
void checkRows(char const* tensor, nvinfer1::Dims const& wanted, nvinfer1::Dims const& given);

} // namespace trtforge::trt

#endif // TRTFORGE_TENSORRT_PLUGIN_HPP
