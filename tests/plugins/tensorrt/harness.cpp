//! \file harness.cpp
//! \brief Drives a plugin library as TensorRT would, without TensorRT: a C interface that tests call through ctypes.
//!
//! Dimensions come as eight numbers a tensor; -1 is a dimension that is not known. Types, formats and phases are
//! TensorRT's own enumerators.
#include <NvInferImpl.h>
#include <NvInferRuntime.h>

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

using namespace nvinfer1;

namespace
{

constexpr int32_t kDIMS = 8;

class Expression : public IDimensionExpr
{
public:
    Expression(int64_t value, bool isConstant)
        : mValue(value, isConstant)
    {
        mImpl = &mValue;
    }

private:
    class Value : public apiv::VDimensionExpr
    {
    public:
        Value(int64_t value, bool isConstant)
            : mNumber(value)
            , mConstant(isConstant)
        {
        }

        bool isConstant() const noexcept override
        {
            return mConstant;
        }

        int64_t getConstantValue() const noexcept override
        {
            return mNumber;
        }

        bool isSizeTensor() const noexcept override
        {
            return false;
        }

    private:
        int64_t mNumber;
        bool mConstant;
    };

    Value mValue;
};

//! Expressions live as long as the harness, as TensorRT's live as long as the network.
std::deque<Expression>& expressions()
{
    static std::deque<Expression> all;
    return all;
}

class Builder : public IExprBuilder
{
public:
    Builder()
    {
        mImpl = &mMaker;
    }

private:
    class Maker : public apiv::VExprBuilder
    {
    public:
        IDimensionExpr const* constant(int64_t value) noexcept override
        {
            return &expressions().emplace_back(value, true);
        }

        IDimensionExpr const* operation(
            DimensionOperation, IDimensionExpr const&, IDimensionExpr const&) noexcept override
        {
            return nullptr; // no op of ours computes with dimensions
        }

        IDimensionExpr const* declareSizeTensor(
            int32_t, IDimensionExpr const&, IDimensionExpr const&) noexcept override
        {
            return nullptr;
        }
    };

    Maker mMaker;
};

//! Keeps what the library logs.
class Logger : public ILogger
{
public:
    void log(Severity severity, AsciiChar const* message) noexcept override
    {
        text += std::string(severity == Severity::kERROR ? "ERROR " : "OTHER ") + message + "\n";
    }

    std::string text;
};

class Finder : public ILoggerFinder
{
public:
    ILogger* findLogger() override
    {
        return &logger;
    }

    Logger logger;
};

Finder finder;
IPluginCreatorInterface* const* creators = nullptr;
int32_t creatorCount = 0;

Dims dimsOf(int32_t rank, int64_t const* values)
{
    Dims dims{};
    dims.nbDims = rank;
    std::copy(values, values + rank, dims.d);
    return dims;
}

PluginTensorDesc tensor(int32_t type, int32_t rank, int64_t const* values)
{
    PluginTensorDesc desc{};
    desc.type = static_cast<DataType>(type);
    desc.format = TensorFormat::kLINEAR;
    desc.dims = dimsOf(rank, values);
    return desc;
}

std::vector<DynamicPluginTensorDesc> dynamicTensors(
    int32_t count, int32_t const* types, int32_t const* ranks, int64_t const* low, int64_t const* best,
    int64_t const* high)
{
    std::vector<DynamicPluginTensorDesc> all(count);
    for (int32_t i = 0; i < count; ++i)
    {
        all[i].desc = tensor(types[i], ranks[i], best + i * kDIMS);
        all[i].min = dimsOf(ranks[i], low + i * kDIMS);
        all[i].opt = dimsOf(ranks[i], best + i * kDIMS);
        all[i].max = dimsOf(ranks[i], high + i * kDIMS);
    }
    return all;
}

template <typename TCapability>
TCapability* capability(void* plugin, PluginCapabilityType type)
{
    return static_cast<TCapability*>(static_cast<IPluginV3*>(plugin)->getCapabilityInterface(type));
}

IPluginV3OneBuildV2* building(void* plugin)
{
    return capability<IPluginV3OneBuildV2>(plugin, PluginCapabilityType::kBUILD);
}

IPluginV3OneRuntime* running(void* plugin)
{
    return capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
}

} // namespace

extern "C"
{

//! Number of creators, or -1 with the loader's message in the log.
int32_t harness_open(char const* path)
{
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
    {
        finder.logger.text = dlerror();
        return -1;
    }
    auto const setFinder = reinterpret_cast<void (*)(ILoggerFinder*)>(dlsym(library, "setLoggerFinder"));
    auto const get
        = reinterpret_cast<IPluginCreatorInterface* const* (*) (int32_t&)>(dlsym(library, "getCreators"));
    setFinder(&finder);
    creators = get(creatorCount);
    return creatorCount;
}

//! What was logged since the last call.
char const* harness_log()
{
    static std::string taken;
    taken = finder.logger.text;
    finder.logger.text.clear();
    return taken.c_str();
}

//! "name|version|namespace|kind" of a creator.
char const* harness_creator(int32_t index)
{
    static std::string text;
    auto* const creator = static_cast<IPluginCreatorV3One*>(creators[index]);
    text = std::string(creator->getPluginName()) + '|' + creator->getPluginVersion() + '|'
        + creator->getPluginNamespace() + '|' + creator->getInterfaceInfo().kind;
    return text.c_str();
}

//! "name:type,…" of a creator's fields.
char const* harness_field_names(int32_t index)
{
    static std::string text;
    text.clear();
    auto const* const fields = static_cast<IPluginCreatorV3One*>(creators[index])->getFieldNames();
    for (int32_t i = 0; i < fields->nbFields; ++i)
    {
        text += std::string(i == 0 ? "" : ",") + fields->fields[i].name + ':'
            + std::to_string(static_cast<int32_t>(fields->fields[i].type));
    }
    return text.c_str();
}

void* harness_create(int32_t index, int32_t phase, int32_t count, char const* const* names, int32_t const* types,
    void const* const* data, int32_t const* lengths)
{
    std::vector<PluginField> fields;
    for (int32_t i = 0; i < count; ++i)
    {
        fields.emplace_back(names[i], data[i], static_cast<PluginFieldType>(types[i]), lengths[i]);
    }
    PluginFieldCollection const collection{count, fields.data()};
    return static_cast<IPluginCreatorV3One*>(creators[index])
        ->createPlugin("layer", &collection, static_cast<TensorRTPhase>(phase));
}

void* harness_clone(void* plugin)
{
    return static_cast<IPluginV3*>(plugin)->clone();
}

void* harness_attach(void* plugin)
{
    return running(plugin)->attachToContext(nullptr);
}

void harness_destroy(void* plugin)
{
    delete static_cast<IPluginV3*>(plugin);
}

//! Serialized fields: names as "a,b", values as the bytes of 4-byte scalars; the number of fields.
int32_t harness_serialize(void* plugin, char const** names, int32_t* types, void* values)
{
    static std::string joined;
    joined.clear();
    auto const* const fields = running(plugin)->getFieldsToSerialize();
    for (int32_t i = 0; i < fields->nbFields; ++i)
    {
        joined += std::string(i == 0 ? "" : ",") + fields->fields[i].name;
        types[i] = static_cast<int32_t>(fields->fields[i].type);
        std::memcpy(static_cast<char*>(values) + 4 * i, fields->fields[i].data, 4);
    }
    *names = joined.c_str();
    return fields->nbFields;
}

char const* harness_core(void* plugin)
{
    static std::string text;
    auto* const core = capability<IPluginV3OneCore>(plugin, PluginCapabilityType::kCORE);
    text = std::string(core->getPluginName()) + '|' + core->getPluginVersion() + '|' + core->getPluginNamespace() + '|'
        + building(plugin)->getInterfaceInfo().kind + '|'
        + std::to_string(building(plugin)->getInterfaceInfo().major) + '|' + building(plugin)->getTimingCacheID();
    return text.c_str();
}

int32_t harness_outputs(void* plugin)
{
    return building(plugin)->getNbOutputs();
}

int32_t harness_alias(void* plugin, int32_t output)
{
    return building(plugin)->getAliasedInput(output);
}

int32_t harness_output_types(void* plugin, int32_t inputs, int32_t const* types, int32_t outputs, int32_t* result)
{
    std::vector<DataType> given;
    for (int32_t i = 0; i < inputs; ++i)
    {
        given.push_back(static_cast<DataType>(types[i]));
    }
    std::vector<DataType> made(outputs);
    int32_t const code = building(plugin)->getOutputDataTypes(made.data(), outputs, given.data(), inputs);
    for (int32_t i = 0; i < outputs; ++i)
    {
        result[i] = static_cast<int32_t>(made[i]);
    }
    return code;
}

int32_t harness_output_shapes(void* plugin, int32_t inputs, int32_t const* ranks, int64_t const* dims, int32_t outputs,
    int32_t* outRanks, int64_t* outDims)
{
    std::vector<DimsExprs> given(inputs);
    for (int32_t i = 0; i < inputs; ++i)
    {
        given[i].nbDims = ranks[i];
        for (int32_t d = 0; d < ranks[i]; ++d)
        {
            int64_t const value = dims[i * kDIMS + d];
            given[i].d[d] = &expressions().emplace_back(value, value >= 0);
        }
    }
    std::vector<DimsExprs> made(outputs);
    Builder builder;
    int32_t const code
        = building(plugin)->getOutputShapes(given.data(), inputs, nullptr, 0, made.data(), outputs, builder);
    for (int32_t i = 0; code == 0 && i < outputs; ++i)
    {
        outRanks[i] = made[i].nbDims;
        for (int32_t d = 0; d < made[i].nbDims; ++d)
        {
            outDims[i * kDIMS + d] = made[i].d[d]->isConstant() ? made[i].d[d]->getConstantValue() : -1;
        }
    }
    return code;
}

int32_t harness_format(
    void* plugin, int32_t pos, int32_t inputs, int32_t outputs, int32_t const* types, int32_t const* formats)
{
    std::vector<DynamicPluginTensorDesc> all(inputs + outputs);
    for (int32_t i = 0; i <= pos; ++i) // what lies behind pos is not valid yet
    {
        all[i].desc.type = static_cast<DataType>(types[i]);
        all[i].desc.format = static_cast<TensorFormat>(formats[i]);
    }
    return building(plugin)->supportsFormatCombination(pos, all.data(), inputs, outputs) ? 1 : 0;
}

int32_t harness_configure(void* plugin, int32_t inputs, int32_t outputs, int32_t const* types, int32_t const* ranks,
    int64_t const* low, int64_t const* best, int64_t const* high)
{
    auto const all = dynamicTensors(inputs, types, ranks, low, best, high);
    return building(plugin)->configurePlugin(all.data(), inputs, nullptr, outputs);
}

int64_t harness_workspace(void* plugin, int32_t inputs, int32_t outputs, int32_t const* types, int32_t const* ranks,
    int64_t const* low, int64_t const* best, int64_t const* high)
{
    auto const all = dynamicTensors(inputs, types, ranks, low, best, high);
    return static_cast<int64_t>(building(plugin)->getWorkspaceSize(all.data(), inputs, nullptr, outputs));
}

int32_t harness_run(void* plugin, int32_t inputs, int32_t outputs, int32_t const* types, int32_t const* ranks,
    int64_t const* dims, void const* const* in, void* const* out, void* workspace)
{
    std::vector<PluginTensorDesc> all;
    for (int32_t i = 0; i < inputs + outputs; ++i)
    {
        all.push_back(tensor(types[i], ranks[i], dims + i * kDIMS));
    }
    int32_t const code = running(plugin)->onShapeChange(all.data(), inputs, all.data() + inputs, outputs);
    return code != 0 ? code : running(plugin)->enqueue(all.data(), all.data() + inputs, in, out, workspace, nullptr);
}

} // extern "C"
