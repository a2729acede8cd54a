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
        cuda::Status const status = cuda::checkAttentionFields(arguments(DataType::kHALF, DataType::kHALF, 16));
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
        cuda::Call call{};
        call.max_new_tokens = longestQuery(largest);
        cuda::AttentionArgs limits = arguments(inputs[kQUERY].desc.type, inputs[kPOOL].desc.type, largest[kPOOL].d[3]);
        setSizes(limits, largest);
        return kSTATUS_BYTES + cuda::attentionWorkspaceBound(limits, call, largestOfArchitecture());
    }

    cuda::Status run(nvinfer1::PluginTensorDesc const* inputDesc, void const* const* inputs, void* const* outputs,
        void* workspace, cuda::Stream stream) const final
    {
        std::vector<Dims> dims;
        for (int32_t i = 0; i < nbInputs(); ++i)
        {
            dims.push_back(inputDesc[i].dims);
        }
        // Both are one address when TensorRT aliased them or the caller bound them so.
        copyUnlessAliased(outputs[1], inputs[kPOOL], tensorBytes(inputDesc[kPOOL]), stream);
        cuda::AttentionArgs args = arguments(inputDesc[kQUERY].type, inputDesc[kPOOL].type, dims[kPOOL].d[3]);
        setSizes(args, dims);
        if (args.num_tokens == 0)
        {
            return {};
        }
        setTensors(args, inputs, outputs);
        cuda::Device const& device = currentDevice();
        cuda::Call call = callOn(stream);
        call.max_new_tokens = longestQuery(dims);
        call.workspace = static_cast<char*>(workspace) + kSTATUS_BYTES;
        call.workspace_bytes = static_cast<int64_t>(cuda::attentionWorkspace(args, call, device));
        if (mScales)
        {
            call.k_scale = static_cast<float const*>(inputs[kREQUIRED]);
            call.v_scale = static_cast<float const*>(inputs[valueScale()]);
        }
        if (kCHECKED)
        {
            call.status = static_cast<int32_t*>(workspace);
            clearBytes(call.status, kSTATUS_BYTES, stream);
        }
        cuda::Status const status = cuda::pagedAttention(args, call, device);
        return kCHECKED && status.ok() ? deviceVerdict("PagedAttention", call.status, stream) : status;
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

    //! Attributes and types; no tensors.
    cuda::AttentionArgs arguments(DataType activation, DataType pool, int64_t blockSize) const
    {
        cuda::AttentionArgs args{};
        args.struct_size = sizeof(args);
        args.num_heads = mHeads;
        args.num_kv_heads = mKvHeads;
        args.head_size = mHeadSize;
        args.block_size = static_cast<int32_t>(blockSize);
        args.activation_dtype = launcherType(activation);
        args.pool_dtype = launcherType(pool);
        args.sliding_window = mFields.integer("sliding_window");
        args.scale = mFields.real("scale");
        args.soft_cap = mFields.real("soft_cap");
        args.query_stride = args.output_stride = static_cast<int64_t>(mHeads) * mHeadSize;
        args.key_stride = args.value_stride = static_cast<int64_t>(mKvHeads) * mHeadSize;
        return args;
    }

    void setSizes(cuda::AttentionArgs& args, std::vector<Dims> const& dims) const
    {
        args.num_tokens = dims[kQUERY].d[0];
        args.num_requests = static_cast<int32_t>(dims[kLENGTHS].d[0]);
        args.max_blocks = static_cast<int32_t>(dims[kBLOCK_TABLE].d[1]);
        args.num_blocks = static_cast<int32_t>(dims[kPOOL].d[0]);
        args.tree_mask_width = mTree ? static_cast<int32_t>(dims[treeMask()].d[1]) : 0;
        args.block_table_stride = args.max_blocks;
        args.tree_mask_stride = args.tree_mask_width;
    }

    static int32_t longestQuery(std::vector<Dims> const& dims)
    {
        return static_cast<int32_t>(dims[kLONGEST].d[0]);
    }

    void setTensors(cuda::AttentionArgs& args, void const* const* inputs, void* const* outputs) const
    {
        args.query = inputs[kQUERY];
        args.key = inputs[kKEY];
        args.value = inputs[kVALUE];
        args.kv_pool = outputs[1];
        args.output = outputs[0];
        args.query_start = static_cast<int32_t const*>(inputs[kQUERY_START]);
        args.sequence_lengths = static_cast<int32_t const*>(inputs[kLENGTHS]);
        args.block_table = static_cast<int32_t const*>(inputs[kBLOCK_TABLE]);
        args.tree_mask = mTree ? static_cast<uint8_t const*>(inputs[treeMask()]) : nullptr;
        args.sinks = mSinks ? static_cast<float const*>(inputs[sinks()]) : nullptr;
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
