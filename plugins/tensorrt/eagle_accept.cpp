//! \file eagle_accept.cpp
//! \brief trtforge::EagleAccept: target logits of a draft tree to the accepted path and the bonus token.
#include "device.hpp"
#include "plugin.hpp"

#include <stdexcept>

namespace trtforge::trt
{

namespace
{

using nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::DimsExprs;

enum Input : int32_t
{
    kLOGITS,
    kTOKENS,
    kPARENTS,
    kCOUNTS,
    kREQUIRED,
    kTEMPERATURES = kREQUIRED,
    kSEEDS,
    kROOT_POSITIONS,
};

enum Output : int32_t
{
    kPATH,
    kLENGTHS,
    kEMITTED,
    kBONUS,
    kOUTPUTS,
};

class EagleAccept final : public Plugin
{
public:
    explicit EagleAccept(Fields const& fields)
        : Plugin(eagleAcceptOp(), fields)
        , mTotal(fields.integer("total"))
        , mSampling(fields.integer("has_sampling") != 0)
    {
        cuda::Status const status = cuda::checkAcceptFields(arguments(DataType::kFLOAT));
        if (!status.ok())
        {
            throw std::invalid_argument(status.message);
        }
    }

protected:
    std::unique_ptr<Plugin> copy() const final
    {
        return std::make_unique<EagleAccept>(mFields);
    }

    int32_t nbInputs() const final
    {
        return mSampling ? kROOT_POSITIONS + 1 : static_cast<int32_t>(kREQUIRED);
    }

    int32_t nbOutputs() const final
    {
        return kOUTPUTS;
    }

    std::string tensorName(int32_t pos) const final
    {
        static char const* const names[]{
            "target_logits", "tokens", "parents", "counts", "temperatures", "seeds", "root_positions"};
        return pos < nbInputs() ? names[pos] : "an output";
    }

    bool typeFits(int32_t pos, std::vector<DataType> const& types) const final
    {
        switch (pos)
        {
        case kLOGITS: return isActivation(types[pos]);
        case kTEMPERATURES: return types[pos] == DataType::kFLOAT;
        case kSEEDS: return types[pos] == DataType::kINT64;
        default: return types[pos] == DataType::kINT32;
        }
    }

    DataType outputType(int32_t /*index*/, DataType const* /*inputTypes*/) const final
    {
        return DataType::kINT32;
    }

    std::vector<Expected> expected() const final
    {
        std::vector<Expected> shapes{{-1, -1}, {-1, mTotal}, {-1, mTotal}, {-1}};
        if (mSampling)
        {
            shapes.insert(shapes.end(), 3, {-1});
        }
        return shapes;
    }

    void checkRelations(std::vector<Dims> const& dims) const final
    {
        for (int32_t i = kPARENTS; i < nbInputs(); ++i)
        {
            checkRows(tensorName(i).c_str(), dims[kTOKENS], dims[i]);
        }
        Dims rows{};
        rows.nbDims = 1;
        rows.d[0] = dims[kTOKENS].d[0] < 0 ? -1 : dims[kTOKENS].d[0] * mTotal;
        checkRows("target_logits", rows, dims[kLOGITS]);
    }

    void outputShape(
        int32_t index, DimsExprs const* inputs, DimsExprs& output, nvinfer1::IExprBuilder& build) const final
    {
        output.nbDims = index == kPATH || index == kEMITTED ? 2 : 1;
        output.d[0] = inputs[kTOKENS].d[0];
        if (output.nbDims == 2)
        {
            output.d[1] = build.constant(mTotal);
        }
    }

    int32_t aliasOf(int32_t /*output*/) const final
    {
        return -1;
    }

    size_t workspace(nvinfer1::DynamicPluginTensorDesc const* /*inputs*/) const final
    {
        return 0;
    }

    cuda::Status run(nvinfer1::PluginTensorDesc const* inputDesc, void const* const* inputs, void* const* outputs,
        void* /*workspace*/, cuda::Stream stream) const final
    {
        cuda::AcceptArgs args = arguments(inputDesc[kLOGITS].type);
        args.target_logits = inputs[kLOGITS];
        args.target_logits_stride = inputDesc[kLOGITS].dims.d[1];
        args.tokens = static_cast<int32_t const*>(inputs[kTOKENS]);
        args.parents = static_cast<int32_t const*>(inputs[kPARENTS]);
        args.counts = static_cast<int32_t const*>(inputs[kCOUNTS]);
        if (mSampling)
        {
            args.temperatures = static_cast<float const*>(inputs[kTEMPERATURES]);
            args.seeds = static_cast<int64_t const*>(inputs[kSEEDS]);
            args.root_positions = static_cast<int32_t const*>(inputs[kROOT_POSITIONS]);
        }
        args.path = static_cast<int32_t*>(outputs[kPATH]);
        args.lengths = static_cast<int32_t*>(outputs[kLENGTHS]);
        args.emitted = static_cast<int32_t*>(outputs[kEMITTED]);
        args.bonus = static_cast<int32_t*>(outputs[kBONUS]);
        args.requests = static_cast<int32_t>(inputDesc[kTOKENS].dims.d[0]);
        args.vocabulary = static_cast<int32_t>(inputDesc[kLOGITS].dims.d[1]);
        return cuda::eagleAccept(args, callOn(stream));
    }

private:
    //! Attributes and type; no tensors.
    cuda::AcceptArgs arguments(DataType logits) const
    {
        cuda::AcceptArgs args{};
        args.struct_size = sizeof(args);
        args.total = mTotal;
        args.logits_dtype = launcherType(logits);
        return args;
    }

    int32_t mTotal;
    bool mSampling;
};

} // namespace

std::unique_ptr<Plugin> makeEagleAccept(Fields const& fields)
{
    return std::make_unique<EagleAccept>(fields);
}

} // namespace trtforge::trt
