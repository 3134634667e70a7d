// Bodies of /v1/completions and /v1/chat/completions: how they are read, and which are refused.
#pragma once

#include "core/chat/chat_template.h"

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::http {

/// A request that is answered with {"error": {...}}.
class ApiError : public std::runtime_error {
public:
    /// parameter: which member of the body is meant; empty: none
    ApiError(int errorStatus, const std::string& message, std::string meant = {}, std::string errorCode = {})
        : std::runtime_error(message), status(errorStatus), parameter(std::move(meant)), code(std::move(errorCode)) {}

    const int status;
    const std::string parameter;
    const std::string code; // "model_not_found"; empty: null
};

enum class ApiKind : std::uint8_t { Completion, Chat };

struct ApiRequest {
    ApiKind kind = ApiKind::Completion;
    std::string model; // empty: the model that the server has
    // The prompt. A completion has a text or ids, a chat has messages.
    std::string prompt;
    std::optional<std::vector<std::int32_t>> ids;
    std::vector<ChatMessage> messages;

    std::optional<int> maxTokens;
    double temperature = 1, topP = 1;
    int topK = 0; // 0: all
    std::optional<std::uint64_t> seed;
    std::vector<std::string> stop; // at most four, none empty
    bool stream = false, ignoreEos = false;
    // The usage in a part of its own behind the answer; and, as vLLM has it, the usage so far in every part too.
    bool includeUsage = false, usageInParts = false;
    std::string requestClass; // metadata.class
    int ignored = 0;          // how many names of the body are unknown
};

/// Reads a body.
/// @throws ApiError(400) naming the parameter: the body is not JSON (RFC 8259, names of an object all different, at
/// most 32 levels), a value has the wrong type or is out of range, or a name asks for something that would change the
/// answer and that the server cannot do
ApiRequest readApiRequest(ApiKind kind, std::string_view body);

} // namespace kvscope::http
