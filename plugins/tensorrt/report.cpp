#include "report.hpp"

#include <atomic>
#include <cstdio>

namespace trtforge::trt
{

namespace
{

std::atomic<nvinfer1::ILoggerFinder*> gFinder{nullptr};

std::string& lastMessage()
{
    thread_local std::string message;
    return message;
}

void log(nvinfer1::ILogger::Severity severity, std::string const& message)
{
    nvinfer1::ILoggerFinder* const finder = gFinder.load();
    nvinfer1::ILogger* const logger = finder == nullptr ? nullptr : finder->findLogger();
    if (logger != nullptr)
    {
        logger->log(severity, message.c_str());
    }
    else
    {
        std::fprintf(stderr, "trtforge plugins: %s\n", message.c_str());
    }
}

} // namespace

void setLoggerFinder(nvinfer1::ILoggerFinder* finder) noexcept
{
    gFinder.store(finder);
}

void reportError(std::string const& message) noexcept
{
    try
    {
        lastMessage() = message;
        log(nvinfer1::ILogger::Severity::kERROR, message);
    }
    catch (...) // no memory for the message: the return code still says that it failed
    {
    }
}

void reportWarning(std::string const& message) noexcept
{
    try
    {
        log(nvinfer1::ILogger::Severity::kWARNING, message);
    }
    catch (...)
    {
    }
}

char const* lastError() noexcept
{
    return lastMessage().c_str();
}

} // namespace trtforge::trt
