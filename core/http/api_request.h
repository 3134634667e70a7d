// Bodies of /v1/completions and /v1/chat/completions, and what is refused about them.
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
    std::string model; // empty: whichever there is
    // The prompt: of a completion one of the first two, of a chat the messages.
    std::string prompt;
    std::optional<std::vector<std::int32_t>> ids;
    std::vector<ChatMessage> messages;

    std::optional<int> maxTokens;
    double temperature = 1, topP = 1;
    int topK = 0; // 0: all
    std::optional<std::uint64_t> seed;
    std::vector<std::string> stop; // at most four, none empty
    bool stream = false, includeUsage = false, ignoreEos = false;
    std::string requestClass; // metadata.class
    int ignored = 0;          // members that nobody knows
};

/// Reads a body. @throws ApiError(400) naming the parameter: what is not JSON (RFC 8259, names of an object all
/// different, at most 32 levels), of the wrong type or out of range, and what would change the answer and cannot.
ApiRequest readApiRequest(ApiKind kind, std::string_view body);

} // namespace kvscope::http
