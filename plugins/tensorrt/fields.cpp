#include "fields.hpp"

#include <cmath>
#include <cstring>
#include <sstream>
#include <stdexcept>

namespace trtforge::trt
{

namespace
{

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

char const* typeName(PluginFieldType type)
{
    switch (type)
    {
    case PluginFieldType::kFLOAT16: return "FLOAT16";
    case PluginFieldType::kFLOAT32: return "FLOAT32";
    case PluginFieldType::kFLOAT64: return "FLOAT64";
    case PluginFieldType::kINT8: return "INT8";
    case PluginFieldType::kINT16: return "INT16";
    case PluginFieldType::kINT32: return "INT32";
    case PluginFieldType::kINT64: return "INT64";
    case PluginFieldType::kCHAR: return "CHAR";
    case PluginFieldType::kBF16: return "BF16";
    default: return "another type";
    }
}

[[noreturn]] void refuse(Op const& op, std::string const& what)
{
    throw std::invalid_argument("TF-OPS-203: " + std::string(op.name) + " version " + op.version + ": " + what);
}

std::string knownFields(Op const& op)
{
    std::string names;
    for (auto const& field : op.fields)
    {
        names += names.empty() ? "" : ", ";
        names += field.name;
    }
    return names;
}

std::string range(Field const& field)
{
    std::ostringstream text;
    text << "from " << field.minimum << " to " << field.maximum;
    if (field.multiple > 1)
    {
        text << ", a multiple of " << field.multiple;
    }
    return text.str();
}

template <typename TValue>
TValue read(PluginField const& given)
{
    TValue value;
    std::memcpy(&value, given.data, sizeof(value)); // fields come from serialized bytes too: no alignment is promised
    return value;
}

} // namespace

Fields::Fields(Op const& op, nvinfer1::PluginFieldCollection const* collection)
    : mOp(op)
    , mValues(op.fields.size())
{
    std::vector<bool> seen(op.fields.size(), false);
    for (size_t i = 0; i < op.fields.size(); ++i)
    {
        mValues[i] = {static_cast<int32_t>(op.fields[i].standard), static_cast<float>(op.fields[i].standard)};
    }
    int32_t const count = collection == nullptr ? 0 : collection->nbFields;
    if (count < 0 || (count > 0 && collection->fields == nullptr))
    {
        refuse(op, "the field collection has " + std::to_string(count) + " fields and no array");
    }
    for (int32_t n = 0; n < count; ++n)
    {
        PluginField const& given = collection->fields[n];
        std::string const name = given.name == nullptr ? "" : given.name;
        size_t index = 0;
        while (index < op.fields.size() && name != op.fields[index].name)
        {
            ++index;
        }
        if (index == op.fields.size())
        {
            refuse(op, "field '" + name + "' is unknown; the fields are " + knownFields(op));
        }
        Field const& field = op.fields[index];
        if (seen[index])
        {
            refuse(op, "field '" + name + "' is given twice");
        }
        if (given.type != field.type)
        {
            refuse(op,
                "field '" + name + "' is " + typeName(given.type) + "; it must be " + typeName(field.type));
        }
        if (given.length != 1 || given.data == nullptr)
        {
            refuse(op,
                "field '" + name + "' has " + std::to_string(given.length) + " values"
                    + (given.data == nullptr ? " and no data" : "") + "; it must have one");
        }
        bool const isInteger = field.type == PluginFieldType::kINT32;
        double const value = isInteger ? read<int32_t>(given) : read<float>(given);
        bool const misfit = isInteger && static_cast<int32_t>(value) % field.multiple != 0;
        if (!std::isfinite(value) || value < field.minimum || value > field.maximum || misfit)
        {
            std::ostringstream text;
            text << "field '" << name << "' is " << value << "; it must be " << range(field);
            refuse(op, text.str());
        }
        mValues[index]
            = {isInteger ? read<int32_t>(given) : 0, isInteger ? 0.0F : read<float>(given)};
        seen[index] = true;
    }
    for (size_t i = 0; i < op.fields.size(); ++i)
    {
        if (op.fields[i].required && !seen[i])
        {
            refuse(op,
                std::string("field '") + op.fields[i].name + "' is missing; it must be " + range(op.fields[i]));
        }
    }
    describe();
}

Fields::Fields(Fields const& other)
    : mOp(other.mOp)
    , mValues(other.mValues)
    , mText(other.mText)
{
}

size_t Fields::indexOf(char const* name) const
{
    for (size_t i = 0; i < mOp.fields.size(); ++i)
    {
        if (std::strcmp(name, mOp.fields[i].name) == 0)
        {
            return i;
        }
    }
    throw std::logic_error(std::string(mOp.name) + " has no field " + name);
}

int32_t Fields::integer(char const* name) const
{
    return mValues[indexOf(name)].integer;
}

bool Fields::isSet(char const* name) const
{
    for (size_t i = 0; i < mOp.fields.size(); ++i)
    {
        if (std::strcmp(name, mOp.fields[i].name) == 0)
        {
            return mValues[i].integer != 0;
        }
    }
    return false;
}

float Fields::real(char const* name) const
{
    return mValues[indexOf(name)].real;
}

nvinfer1::PluginFieldCollection const* Fields::serialize()
{
    mSerialized.clear();
    for (size_t i = 0; i < mOp.fields.size(); ++i)
    {
        Field const& field = mOp.fields[i];
        bool const isInteger = field.type == PluginFieldType::kINT32;
        void const* const data
            = isInteger ? static_cast<void const*>(&mValues[i].integer) : static_cast<void const*>(&mValues[i].real);
        mSerialized.emplace_back(field.name, data, field.type, 1);
    }
    mCollection.nbFields = static_cast<int32_t>(mSerialized.size());
    mCollection.fields = mSerialized.data();
    return &mCollection;
}

void Fields::describe()
{
    std::ostringstream text;
    text.precision(9); // tells any two floats apart
    for (size_t i = 0; i < mOp.fields.size(); ++i)
    {
        text << (i == 0 ? "" : ";") << mOp.fields[i].name << '=';
        if (mOp.fields[i].type == PluginFieldType::kINT32)
        {
            text << mValues[i].integer;
        }
        else
        {
            text << mValues[i].real;
        }
    }
    mText = text.str();
}

} // namespace trtforge::trt
