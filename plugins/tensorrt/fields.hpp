//! \file fields.hpp
//! \brief Field values of one plugin: validated on the way in, handed back for serialization on the way out.
#ifndef TRTFORGE_TENSORRT_FIELDS_HPP
#define TRTFORGE_TENSORRT_FIELDS_HPP

#include "contract.hpp"

#include <NvInferRuntime.h>

#include <string>
#include <vector>

namespace trtforge::trt
{

//! \brief The values of an op's fields, in the order of its table.
class Fields
{
public:
    //! \brief Takes the values of \p collection, which may be null when every field has a standard value.
    //!
    //! \throws std::invalid_argument naming the op, the field, the value and what would do: unknown, repeated, of
    //! another type or length, without data, out of range, or missing.
    Fields(Op const& op, nvinfer1::PluginFieldCollection const* collection);

    Fields(Fields const& other);
    Fields& operator=(Fields const&) = delete;

    //! \brief The value of an INT32 field; \p name must be one.
    int32_t integer(char const* name) const;

    //! \brief Whether a flag is set; false for one that the op does not have.
    bool isSet(char const* name) const;

    //! \brief The value of a FLOAT32 field; \p name must be one.
    float real(char const* name) const;

    //! \brief Every field with its value; valid as long as this object.
    nvinfer1::PluginFieldCollection const* serialize();

    //! \brief "name=value" of every field, for timing-cache ids and logs.
    std::string const& text() const
    {
        return mText;
    }

private:
    struct Value
    {
        int32_t integer;
        float real;
    };

    size_t indexOf(char const* name) const;
    void describe();

    Op const& mOp;
    std::vector<Value> mValues;
    std::vector<nvinfer1::PluginField> mSerialized;
    nvinfer1::PluginFieldCollection mCollection{};
    std::string mText;
};

} // namespace trtforge::trt

#endif // TRTFORGE_TENSORRT_FIELDS_HPP
