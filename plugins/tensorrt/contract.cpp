#include "contract.hpp"

#include <sstream>

namespace trtforge::trt
{

namespace
{

using nvinfer1::PluginFieldType;

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

#include "op_tables.inc"

std::vector<Op const*> const& ops()
{
    static std::vector<Op const*> const all{&pagedAttentionOp(), &eagleTreeBuildOp(), &eagleAcceptOp(), &pagedKVMoveOp()};
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
