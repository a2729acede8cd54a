//! \file eagle_tree_build.cpp
//! \brief trtforge::EagleTreeBuild: one level of a draft tree; its state is updated in place.
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
    kROOTS,
    kSTATE_TOKENS,
    kSTATE_PARENTS,
    kSTATE_SCORES,
    kFRONTIER,
    kREQUIRED,
};

enum Output : int32_t
{
    kSTATE_OUT = 0, //!< the four state tensors, in the order of the inputs
    kTOKENS = 4,
    kPARENTS,
    kDEPTHS,
    kSCORES,
    kMASK,
    kCOUNTS,
    kOUTPUTS,
};

class EagleTreeBuild final : public Plugin
{
public:
    explicit EagleTreeBuild(Fields const& fields)
        : Plugin(eagleTreeBuildOp(), fields)
        , mLevel(fields.integer("level"))
        , mTotal(fields.integer("total"))
        , mExpand(fields.integer("expand"))
        , mMapped(fields.integer("has_draft_to_target") != 0)
        , mStatic(fields.integer("has_static_tree") != 0)
    {
        if (mLevel >= fields.integer("levels"))
        {
            throw std::invalid_argument("EagleTreeBuild version 1: level " + std::to_string(mLevel)
                + " is not below levels " + std::to_string(fields.integer("levels")));
        }
        cuda::Status const status = cuda::checkTreeFields(arguments(DataType::kFLOAT));
        if (!status.ok())
        {
            throw std::invalid_argument(status.message);
        }
    }

protected:
    std::unique_ptr<Plugin> copy() const final
    {
        return std::make_unique<EagleTreeBuild>(mFields);
    }

    int32_t nbInputs() const final
    {
        return kREQUIRED + mMapped + 2 * mStatic;
    }

    int32_t nbOutputs() const final
    {
        return kOUTPUTS;
    }

    std::string tensorName(int32_t pos) const final
    {
        static char const* const names[]{"draft_logits", "root_tokens", "candidate_tokens", "candidate_parents",
            "candidate_scores", "frontier"};
        if (pos < kREQUIRED)
        {
            return names[pos];
        }
        if (mMapped && pos == kREQUIRED)
        {
            return "draft_to_target";
        }
        return pos >= nbInputs() ? "an output" : pos == staticParents() ? "static_parents" : "static_ranks";
    }

    bool typeFits(int32_t pos, std::vector<DataType> const& types) const final
    {
        if (pos == kLOGITS)
        {
            return isActivation(types[pos]);
        }
        return types[pos] == (pos == kSTATE_SCORES ? DataType::kFLOAT : DataType::kINT32);
    }

    DataType outputType(int32_t index, DataType const* /*inputTypes*/) const final
    {
        if (index == kMASK)
        {
            return DataType::kINT8; // bytes 0 or 1: plugins have no boolean or unsigned outputs
        }
        return index == kSCORES || index == kSTATE_OUT + 2 ? DataType::kFLOAT : DataType::kINT32;
    }

    std::vector<Expected> expected() const final
    {
        int64_t const candidates = cuda::treeCandidates(arguments(DataType::kFLOAT));
        std::vector<Expected> shapes{{-1, mLevel == 0 ? 1 : mExpand, -1}, {-1}, {-1, candidates}, {-1, candidates},
            {-1, candidates}, {-1, mExpand}};
        if (mMapped)
        {
            shapes.push_back({-1});
        }
        if (mStatic)
        {
            shapes.insert(shapes.end(), 2, {mTotal});
        }
        return shapes;
    }

    void checkRelations(std::vector<Dims> const& dims) const final
    {
        for (int32_t i = kROOTS; i < kREQUIRED; ++i)
        {
            checkRows(tensorName(i).c_str(), dims[kLOGITS], dims[i]);
        }
        if (mMapped)
        {
            Dims vocabulary{};
            vocabulary.nbDims = 1;
            vocabulary.d[0] = dims[kLOGITS].d[2];
            checkRows("draft_to_target", vocabulary, dims[kREQUIRED]);
        }
    }

    void outputShape(
        int32_t index, DimsExprs const* inputs, DimsExprs& output, nvinfer1::IExprBuilder& build) const final
    {
        if (index < kTOKENS)
        {
            output = inputs[kSTATE_TOKENS + index - kSTATE_OUT];
            return;
        }
        output.nbDims = index == kCOUNTS ? 1 : index == kMASK ? 3 : 2;
        output.d[0] = inputs[kLOGITS].d[0];
        for (int32_t i = 1; i < output.nbDims; ++i)
        {
            output.d[i] = build.constant(mTotal);
        }
    }

    int32_t aliasOf(int32_t output) const final
    {
        return output >= kSTATE_OUT && output < kTOKENS ? kSTATE_TOKENS + output - kSTATE_OUT : -1;
    }

    size_t workspace(nvinfer1::DynamicPluginTensorDesc const* /*inputs*/) const final
    {
        return 0;
    }

    cuda::Status run(nvinfer1::PluginTensorDesc const* inputDesc, void const* const* inputs, void* const* outputs,
        void* /*workspace*/, cuda::Stream stream) const final
    {
        for (int32_t i = 0; i < kTOKENS; ++i)
        {
            int32_t const source = aliasOf(kSTATE_OUT + i);
            copyUnlessAliased(outputs[kSTATE_OUT + i], inputs[source], tensorBytes(inputDesc[source]), stream);
        }
        cuda::TreeArgs args = arguments(inputDesc[kLOGITS].type);
        args.draft_logits = inputs[kLOGITS];
        args.draft_logits_stride = inputDesc[kLOGITS].dims.d[2];
        args.root_tokens = static_cast<int32_t const*>(inputs[kROOTS]);
        args.draft_to_target = mMapped ? static_cast<int32_t const*>(inputs[kREQUIRED]) : nullptr;
        args.static_parents = mStatic ? static_cast<int32_t const*>(inputs[staticParents()]) : nullptr;
        args.static_ranks = mStatic ? static_cast<int32_t const*>(inputs[staticParents() + 1]) : nullptr;
        args.candidate_tokens = static_cast<int32_t*>(outputs[kSTATE_OUT]);
        args.candidate_parents = static_cast<int32_t*>(outputs[kSTATE_OUT + 1]);
        args.candidate_scores = static_cast<float*>(outputs[kSTATE_OUT + 2]);
        args.frontier = static_cast<int32_t*>(outputs[kSTATE_OUT + 3]);
        args.tokens = static_cast<int32_t*>(outputs[kTOKENS]);
        args.parents = static_cast<int32_t*>(outputs[kPARENTS]);
        args.depths = static_cast<int32_t*>(outputs[kDEPTHS]);
        args.scores = static_cast<float*>(outputs[kSCORES]);
        args.mask = static_cast<uint8_t*>(outputs[kMASK]);
        args.counts = static_cast<int32_t*>(outputs[kCOUNTS]);
        args.requests = static_cast<int32_t>(inputDesc[kROOTS].dims.d[0]);
        args.vocabulary = static_cast<int32_t>(inputDesc[kLOGITS].dims.d[2]);
        return cuda::eagleTreeBuild(args, callOn(stream));
    }

private:
    int32_t staticParents() const
    {
        return kREQUIRED + mMapped;
    }

    //! Attributes and type; no tensors.
    cuda::TreeArgs arguments(DataType logits) const
    {
        cuda::TreeArgs args{};
        args.struct_size = sizeof(args);
        args.top_k = mFields.integer("top_k");
        args.expand = mExpand;
        args.levels = mFields.integer("levels");
        args.total = mTotal;
        args.level = mLevel;
        args.logits_dtype = launcherType(logits);
        return args;
    }

    int32_t mLevel;
    int32_t mTotal;
    int32_t mExpand;
    bool mMapped;
    bool mStatic;
};

} // namespace

std::unique_ptr<Plugin> makeEagleTreeBuild(Fields const& fields)
{
    return std::make_unique<EagleTreeBuild>(fields);
}

} // namespace trtforge::trt
