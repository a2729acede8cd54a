//! \file paged_attention.cpp
//! \brief trtforge::PagedAttention: attention over a paged KV pool that it writes in place.
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

//! Positions of the inputs that are always there; optional ones follow in the order of the contract.
enum Input : int32_t
{
    kQUERY,
    kKEY,
    kVALUE,
    kPOOL,
    kQUERY_START,
    kLENGTHS,
    kBLOCK_TABLE,
    kLONGEST, //!< its length is the most new tokens of a request; its contents are never read
    kREQUIRED,
};

class PagedAttention final : public Plugin
{
public:
    explicit PagedAttention(Fields const& fields)
        : Plugin(pagedAttentionOp(), fields)
        , mHeads(fields.integer("num_heads"))
        , mKvHeads(fields.integer("num_kv_heads"))
        , mHeadSize(fields.integer("head_size"))
        , mScales(fields.integer("has_scales") != 0)
        , mTree(fields.integer("has_tree_mask") != 0)
        , mSinks(fields.integer("has_sinks") != 0)
    {
        if (mHeads % mKvHeads != 0)
        {
            throw std::invalid_argument("PagedAttention version 2: num_heads " + std::to_string(mHeads)
                + " is no multiple of num_kv_heads " + std::to_string(mKvHeads));
        }
        // What no block size and no type would make right is refused here, not by the first step of a built engine.
        cuda::Status const status = cuda::checkAttentionFields(
            launcherFields(DataType::kHALF, DataType::kHALF, 16));
        if (!status.ok())
        {
            throw std::invalid_argument("PagedAttention version 2: " + status.message);
        }
    }

protected:
    std::unique_ptr<Plugin> copy() const final
    {
        return std::make_unique<PagedAttention>(mFields);
    }

    int32_t nbInputs() const final
    {
        return kREQUIRED + 2 * mScales + mTree + mSinks;
    }

    int32_t nbOutputs() const final
    {
        return 2;
    }

    std::string tensorName(int32_t pos) const final
    {
        static char const* const names[]{
            "query", "key", "value", "kv_pool", "query_start", "sequence_lengths", "block_table",
            "longest_query"};
        if (pos < kREQUIRED)
        {
            return names[pos];
        }
        if (mScales && pos <= valueScale())
        {
            return pos == valueScale() ? "v_scale" : "k_scale";
        }
        return mTree && pos == treeMask() ? "tree_mask" : mSinks && pos == sinks() ? "sinks" : "an output";
    }

    bool typeFits(int32_t pos, std::vector<DataType> const& types) const final
    {
        DataType const type = types[pos];
        if (pos == kQUERY)
        {
            return isActivation(type);
        }
        if (pos == kKEY || pos == kVALUE)
        {
            return type == types[kQUERY];
        }
        if (pos == kPOOL)
        {
            return isPool(type) && (type == DataType::kFP8 || !mScales);
        }
        if (pos < kREQUIRED)
        {
            return type == DataType::kINT32;
        }
        if (mTree && pos == treeMask())
        {
            return type == DataType::kBOOL || type == DataType::kINT8 || type == DataType::kUINT8;
        }
        return type == DataType::kFLOAT;
    }

    DataType outputType(int32_t index, DataType const* inputTypes) const final
    {
        return inputTypes[index == 0 ? kQUERY : kPOOL];
    }

    std::vector<Expected> expected() const final
    {
        int64_t const wide = static_cast<int64_t>(mHeads) * mHeadSize;
        int64_t const narrow = static_cast<int64_t>(mKvHeads) * mHeadSize;
        std::vector<Expected> shapes{
            {-1, wide}, {-1, narrow}, {-1, narrow}, {-1, 2, mKvHeads, -1, mHeadSize}, {-1}, {-1}, {-1, -1}, {-1}};
        if (mScales)
        {
            shapes.insert(shapes.end(), 2, {});
        }
        if (mTree)
        {
            shapes.push_back({-1, -1});
        }
        if (mSinks)
        {
            shapes.push_back({mHeads});
        }
        return shapes;
    }

    void checkRelations(std::vector<Dims> const& dims) const final
    {
        checkBlockSize("kv_pool", dims[kPOOL].d[3]);
        checkRows("key", dims[kQUERY], dims[kKEY]);
        checkRows("value", dims[kQUERY], dims[kVALUE]);
        if (mTree)
        {
            checkRows("tree_mask", dims[kQUERY], dims[treeMask()]);
        }
        checkRows("block_table", dims[kLENGTHS], dims[kBLOCK_TABLE]);
        int64_t const requests = dims[kLENGTHS].d[0];
        int64_t const starts = dims[kQUERY_START].d[0];
        if (requests >= 0 && starts >= 0 && starts != requests + 1)
        {
            throw std::invalid_argument("query_start has " + std::to_string(starts) + " entries for "
                + std::to_string(requests) + " requests; it must have one more");
        }
    }

    void outputShape(
        int32_t index, DimsExprs const* inputs, DimsExprs& output, nvinfer1::IExprBuilder& /*build*/) const final
    {
        output = inputs[index == 0 ? kQUERY : kPOOL];
    }

    int32_t aliasOf(int32_t output) const final
    {
        return output == 1 ? static_cast<int32_t>(kPOOL) : -1;
    }

    size_t workspace(nvinfer1::DynamicPluginTensorDesc const* inputs) const final
    {
        std::vector<Dims> largest;
        for (int32_t i = 0; i < nbInputs(); ++i)
        {
            largest.push_back(inputs[i].max);
        }
        return kSTATUS_BYTES
            + cuda::attentionWorkspaceBound(launcherFields(inputs[kQUERY].desc.type, inputs[kPOOL].desc.type,
                                               largest[kPOOL].d[3]),
                shape(largest), largestOfArchitecture());
    }

    cuda::Status run(nvinfer1::PluginTensorDesc const* inputDesc, void const* const* inputs, void* const* outputs,
        void* workspace, cuda::Stream stream) const final
    {
        std::vector<Dims> dims;
        for (int32_t i = 0; i < nbInputs(); ++i)
        {
            dims.push_back(inputDesc[i].dims);
        }
        cuda::AttentionShape const sizes = shape(dims);
        DataType const poolType = inputDesc[kPOOL].type;
        // Both are one address when TensorRT aliased them or the caller bound them so.
        copyUnlessAliased(outputs[1], inputs[kPOOL], tensorBytes(inputDesc[kPOOL]), stream);
        if (sizes.tokens == 0)
        {
            return {};
        }
        cuda::AttentionFields const fields = launcherFields(inputDesc[kQUERY].type, poolType, dims[kPOOL].d[3]);
        cuda::Device const& device = currentDevice();
        cuda::AttentionTensors given = tensors(inputs, outputs, sizes);
        if (kCHECKED)
        {
            given.status = static_cast<int32_t*>(workspace);
            clearBytes(given.status, kSTATUS_BYTES, stream);
        }
        cuda::Status const status = cuda::pagedAttention(fields, sizes, given,
            static_cast<char*>(workspace) + kSTATUS_BYTES, cuda::attentionWorkspace(fields, sizes, device), device, stream);
        return kCHECKED && status.ok() ? deviceVerdict("PagedAttention", given.status, stream) : status;
    }

private:
    int32_t valueScale() const
    {
        return kREQUIRED + 1;
    }

    int32_t treeMask() const
    {
        return kREQUIRED + 2 * mScales;
    }

    int32_t sinks() const
    {
        return treeMask() + mTree;
    }

    cuda::AttentionFields launcherFields(DataType activation, DataType pool, int64_t blockSize) const
    {
        cuda::AttentionFields fields;
        fields.numHeads = mHeads;
        fields.numKvHeads = mKvHeads;
        fields.headSize = mHeadSize;
        fields.blockSize = static_cast<int32_t>(blockSize);
        fields.activationDtype = launcherType(activation);
        fields.poolDtype = launcherType(pool);
        fields.slidingWindow = mFields.integer("sliding_window");
        fields.scale = mFields.real("scale");
        fields.softCap = mFields.real("soft_cap");
        return fields;
    }

    cuda::AttentionShape shape(std::vector<Dims> const& dims) const
    {
        cuda::AttentionShape sizes;
        sizes.tokens = dims[kQUERY].d[0];
        sizes.requests = static_cast<int32_t>(dims[kLENGTHS].d[0]);
        sizes.maxBlocks = static_cast<int32_t>(dims[kBLOCK_TABLE].d[1]);
        sizes.numBlocks = static_cast<int32_t>(dims[kPOOL].d[0]);
        sizes.treeMaskWidth = mTree ? static_cast<int32_t>(dims[treeMask()].d[1]) : 0;
        sizes.maxNewTokens = static_cast<int32_t>(dims[kLONGEST].d[0]);
        return sizes;
    }

    cuda::AttentionTensors tensors(
        void const* const* inputs, void* const* outputs, cuda::AttentionShape const& sizes) const
    {
        cuda::AttentionTensors given;
        given.query = inputs[kQUERY];
        given.key = inputs[kKEY];
        given.value = inputs[kVALUE];
        given.kvPool = outputs[1];
        given.output = outputs[0];
        given.queryStart = static_cast<int32_t const*>(inputs[kQUERY_START]);
        given.sequenceLengths = static_cast<int32_t const*>(inputs[kLENGTHS]);
        given.blockTable = static_cast<int32_t const*>(inputs[kBLOCK_TABLE]);
        if (mScales)
        {
            given.kScale = static_cast<float const*>(inputs[kREQUIRED]);
            given.vScale = static_cast<float const*>(inputs[valueScale()]);
        }
        if (mTree)
        {
            given.treeMask = static_cast<uint8_t const*>(inputs[treeMask()]);
            given.treeMaskStride = sizes.treeMaskWidth;
        }
        if (mSinks)
        {
            given.sinks = static_cast<float const*>(inputs[sinks()]);
        }
        given.queryStride = given.outputStride = static_cast<int64_t>(mHeads) * mHeadSize;
        given.keyStride = given.valueStride = static_cast<int64_t>(mKvHeads) * mHeadSize;
        given.blockTableStride = sizes.maxBlocks;
        return given;
    }

    int32_t mHeads;
    int32_t mKvHeads;
    int32_t mHeadSize;
    bool mScales;
    bool mTree;
    bool mSinks;
};

} // namespace

std::unique_ptr<Plugin> makePagedAttention(Fields const& fields)
{
    return std::make_unique<PagedAttention>(fields);
}

} // namespace trtforge::trt
