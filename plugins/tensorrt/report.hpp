//! \file report.hpp
//! \brief Where a plugin's complaints go: TensorRT's logger when there is one, standard error otherwise.
#ifndef TRTFORGE_TENSORRT_REPORT_HPP
#define TRTFORGE_TENSORRT_REPORT_HPP

#include <NvInferRuntime.h>

#include <string>

namespace trtforge::trt
{

//! \brief TensorRT hands it over when it loads the library; null takes it away.
void setLoggerFinder(nvinfer1::ILoggerFinder* finder) noexcept;

//! \brief Logs an error and keeps it as this thread's last one.
void reportError(std::string const& message) noexcept;

//! \brief Logs a warning.
void reportWarning(std::string const& message) noexcept;

//! \brief The last error of this thread; "" when there was none.
char const* lastError() noexcept;

} // namespace trtforge::trt

#endif // TRTFORGE_TENSORRT_REPORT_HPP
