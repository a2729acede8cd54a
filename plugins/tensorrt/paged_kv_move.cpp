//! \file paged_kv_move.cpp
//! \brief trtforge::PagedKVMove: accepted nodes' keys and values to contiguous slots, in every pool, in place.
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
    kBLOCK_TABLE,
    kBASES,
    kPATH,
    kLENGTHS,
    kFIRST_POOL,
};

class PagedKvMove final : public Plugin
{
public:
    explicit PagedKvMove(Fields const& fields)
        : Plugin(pagedKVMoveOp(), fields)
        , mPools(fields.integer("num_pools"))
        , mKvHeads(fields.integer("num_kv_heads"))
        , mHeadSize(fields.integer("head_size"))
    {
    }

protected:
    std::unique_ptr<Plugin> copy() const final
    {
        return std::make_unique<PagedKvMove>(mFields);
    }

    int32_t nbInputs() const final
    {
        return kFIRST_POOL + mPools;
    }

    int32_t nbOutputs() const final
    {
        return mPools;
    }

    std::string tensorName(int32_t pos) const final
    {
        static char const* const names[]{"block_table", "base_positions", "path", "lengths"};
        if (pos < kFIRST_POOL)
        {
            return names[pos];
        }
        return pos < nbInputs() ? "pool " + std::to_string(pos - kFIRST_POOL) : "an output";
    }

    bool typeFits(int32_t pos, std::vector<DataType> const& types) const final
    {
        if (pos < kFIRST_POOL)
        {
            return types[pos] == DataType::kINT32;
        }
        return isPool(types[pos]) && types[pos] == types[kFIRST_POOL];
    }

    DataType outputType(int32_t index, DataType const* inputTypes) const final
    {
        return inputTypes[kFIRST_POOL + index];
    }

    std::vector<Expected> expected() const final
    {
        std::vector<Expected> shapes{{-1, -1}, {-1}, {-1, -1}, {-1}};
        shapes.insert(shapes.end(), static_cast<size_t>(mPools), Expected{-1, 2, mKvHeads, -1, mHeadSize});
        return shapes;
    }

    void checkRelations(std::vector<Dims> const& dims) const final
    {
        for (int32_t i = kBASES; i <= kLENGTHS; ++i)
        {
            checkRows(tensorName(i).c_str(), dims[kBLOCK_TABLE], dims[i]);
        }
        for (int32_t i = kFIRST_POOL; i < nbInputs(); ++i)
        {
            checkBlockSize(tensorName(i).c_str(), dims[i].d[3]);
            checkRows(tensorName(i).c_str(), dims[kFIRST_POOL], dims[i]);
            if (dims[i].d[3] != dims[kFIRST_POOL].d[3])
            {
                throw std::invalid_argument(tensorName(i) + " has blocks of another size than pool 0");
            }
        }
    }

    void outputShape(
        int32_t index, DimsExprs const* inputs, DimsExprs& output, nvinfer1::IExprBuilder& /*build*/) const final
    {
        output = inputs[kFIRST_POOL + index];
    }

    int32_t aliasOf(int32_t output) const final
    {
        return output >= 0 && output < mPools ? kFIRST_POOL + output : -1;
    }

    size_t workspace(nvinfer1::DynamicPluginTensorDesc const* /*inputs*/) const final
    {
        return kSTATUS_BYTES;
    }

    cuda::Status run(nvinfer1::PluginTensorDesc const* inputDesc, void const* const* inputs, void* const* outputs,
        void* workspace, cuda::Stream stream) const final
    {
        for (int32_t i = 0; i < mPools; ++i)
        {
            copyUnlessAliased(outputs[i], inputs[kFIRST_POOL + i], tensorBytes(inputDesc[kFIRST_POOL + i]), stream);
        }
        cuda::MoveArgs args{};
        args.struct_size = sizeof(args);
        args.num_kv_heads = mKvHeads;
        args.head_size = mHeadSize;
        args.block_size = static_cast<int32_t>(inputDesc[kFIRST_POOL].dims.d[3]);
        args.pool_dtype = launcherType(inputDesc[kFIRST_POOL].type);
        args.pools = outputs;
        args.num_pools = mPools;
        args.num_blocks = static_cast<int32_t>(inputDesc[kFIRST_POOL].dims.d[0]);
        args.requests = static_cast<int32_t>(inputDesc[kBLOCK_TABLE].dims.d[0]);
        args.max_blocks = static_cast<int32_t>(inputDesc[kBLOCK_TABLE].dims.d[1]);
        args.path_width = static_cast<int32_t>(inputDesc[kPATH].dims.d[1]);
        args.block_table = static_cast<int32_t const*>(inputs[kBLOCK_TABLE]);
        args.block_table_stride = args.max_blocks;
        args.base_positions = static_cast<int32_t const*>(inputs[kBASES]);
        args.path = static_cast<int32_t const*>(inputs[kPATH]);
        args.lengths = static_cast<int32_t const*>(inputs[kLENGTHS]);
        cuda::Call call = callOn(stream);
        if (kCHECKED)
        {
            call.status = static_cast<int32_t*>(workspace);
            clearBytes(call.status, kSTATUS_BYTES, stream);
        }
        cuda::Status const status = cuda::pagedKvMove(args, call);
        return kCHECKED && status.ok() ? deviceVerdict("PagedKVMove", call.status, stream) : status;
    }

private:
    int32_t mPools;
    int32_t mKvHeads;
    int32_t mHeadSize;
};

} // namespace

std::unique_ptr<Plugin> makePagedKvMove(Fields const& fields)
{
    return std::make_unique<PagedKvMove>(fields);
}

} // namespace trtforge::trt
