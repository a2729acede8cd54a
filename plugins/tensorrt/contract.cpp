#include "contract.hpp"

#include "trtforge/cuda/launchers.hpp"

#include <sstream>

namespace trtforge::trt
{

namespace
{

using nvinfer1::PluginFieldType;

constexpr double kMAX_INT = 2147483647.0;

Field whole(char const* name, double minimum, double maximum, int32_t multiple = 1)
{
    return {name, PluginFieldType::kINT32, true, minimum, minimum, maximum, multiple};
}

Field optionalWhole(char const* name, double standard, double minimum, double maximum)
{
    return {name, PluginFieldType::kINT32, false, standard, minimum, maximum, 1};
}

Field flag(char const* name)
{
    return optionalWhole(name, 0, 0, 1);
}

Field optionalReal(char const* name, double standard, double minimum, double maximum)
{
    return {name, PluginFieldType::kFLOAT32, false, standard, minimum, maximum, 1};
}

char const* typeText(PluginFieldType type)
{
    return type == PluginFieldType::kINT32 ? "int32" : "float32";
}

std::string makeText()
{
    std::ostringstream text;
    text << "trtforge TensorRT plugins, namespace " << kNAMESPACE << '\n';
    for (Op const* op : ops())
    {
        text << "op " << op->name << " version " << op->version << '\n';
        for (Field const& field : op->fields)
        {
            text << "field " << field.name << ' ' << typeText(field.type);
            if (field.required)
            {
                text << " required\n";
            }
            else
            {
                text << " standard " << field.standard << '\n';
            }
        }
        for (char const* input : op->inputs)
        {
            text << "input " << input << '\n';
        }
        for (char const* output : op->outputs)
        {
            text << "output " << output << '\n';
        }
        for (char const* alias : op->aliases)
        {
            text << "in place " << alias << " declared if " << kALIASED << '\n';
        }
    }
    return text.str();
}

std::string makeHash()
{
    uint64_t hash = 14695981039346656037ULL;
    for (char const letter : contractText())
    {
        hash = (hash ^ static_cast<uint8_t>(letter)) * 1099511628211ULL;
    }
    char digits[17];
    for (int32_t i = 0; i < 16; ++i)
    {
        digits[i] = "0123456789abcdef"[(hash >> (60 - 4 * i)) & 15U];
    }
    digits[16] = '\0';
    return digits;
}

} // namespace

Op const& pagedAttentionOp()
{
    static Op const op{"PagedAttention", "2",
        {
            whole("num_heads", 1, 1024),
            whole("num_kv_heads", 1, 1024),
            whole("head_size", 64, 256, 8),
            optionalReal("scale", 0, 0, 1e6),
            optionalWhole("sliding_window", 0, 0, kMAX_INT),
            optionalReal("soft_cap", 0, 0, 1e6),
            flag("has_scales"),
            flag("has_tree_mask"),
            flag("has_sinks"),
            flag(kALIASED),
        },
        {
            "query T [T,H*E]",
            "key T [T,K*E]",
            "value T [T,K*E]",
            "kv_pool P [N,2,K,S,E]",
            "query_start int32 [B+1]",
            "sequence_lengths int32 [B]",
            "block_table int32 [B,M]",
            "longest_query int32 [Q] of which the shape is read",
            "k_scale float32 [] if has_scales",
            "v_scale float32 [] if has_scales",
            "tree_mask byte [T,W] if has_tree_mask",
            "sinks float32 [H] if has_sinks",
        },
        {"attention T [T,H*E]", "kv_pool_out P [N,2,K,S,E]"}, {"kv_pool_out kv_pool"}};
    return op;
}

Op const& eagleTreeBuildOp()
{
    static Op const op{"EagleTreeBuild", "1",
        {
            whole("top_k", 1, 16),
            whole("expand", 1, 16),
            whole("levels", 1, 16),
            whole("total", 2, cuda::kMAX_TREE),
            whole("level", 0, 15),
            flag("has_draft_to_target"),
            flag("has_static_tree"),
            flag(kALIASED),
        },
        {
            "draft_logits T [B,R,V]",
            "root_tokens int32 [B]",
            "candidate_tokens int32 [B,C]",
            "candidate_parents int32 [B,C]",
            "candidate_scores float32 [B,C]",
            "frontier int32 [B,X]",
            "draft_to_target int32 [V] if has_draft_to_target",
            "static_parents int32 [G] if has_static_tree",
            "static_ranks int32 [G] if has_static_tree",
        },
        {
            "candidate_tokens_out int32 [B,C]",
            "candidate_parents_out int32 [B,C]",
            "candidate_scores_out float32 [B,C]",
            "frontier_out int32 [B,X]",
            "tokens int32 [B,G]",
            "parents int32 [B,G]",
            "depths int32 [B,G]",
            "scores float32 [B,G]",
            "mask int8 [B,G,G]",
            "counts int32 [B]",
        },
        {
            "candidate_tokens_out candidate_tokens",
            "candidate_parents_out candidate_parents",
            "candidate_scores_out candidate_scores",
            "frontier_out frontier",
        }};
    return op;
}

Op const& eagleAcceptOp()
{
    static Op const op{"EagleAccept", "1",
        {whole("total", 1, cuda::kMAX_TREE), flag("has_sampling")},
        {
            "target_logits T [B*G,V]",
            "tokens int32 [B,G]",
            "parents int32 [B,G]",
            "counts int32 [B]",
            "temperatures float32 [B] if has_sampling",
            "seeds int64 [B] if has_sampling",
            "root_positions int32 [B] if has_sampling",
        },
        {"path int32 [B,G]", "lengths int32 [B]", "emitted int32 [B,G]", "bonus int32 [B]"}, {}};
    return op;
}

Op const& pagedKvMoveOp()
{
    static Op const op{"PagedKVMove", "1",
        {
            whole("num_kv_heads", 1, 1024),
            whole("head_size", 64, 256, 8),
            whole("num_pools", 1, 512),
            flag(kALIASED),
        },
        {
            "block_table int32 [B,M]",
            "base_positions int32 [B]",
            "path int32 [B,G]",
            "lengths int32 [B]",
            "pools P [N,2,K,S,E] times num_pools",
        },
        {"pools_out P [N,2,K,S,E] times num_pools"}, {"pools_out pools"}};
    return op;
}

std::vector<Op const*> const& ops()
{
    static std::vector<Op const*> const all{&pagedAttentionOp(), &eagleTreeBuildOp(), &eagleAcceptOp(), &pagedKvMoveOp()};
    return all;
}

std::string const& contractText()
{
    static std::string const text = makeText();
    return text;
}

std::string const& abiHash()
{
    static std::string const hash = makeHash();
    return hash;
}

} // namespace trtforge::trt
