// The bytes of a connection, whole and one by one, and what each request's body asks for.
#include "core/http/api_request.h"
#include "core/http/api_response.h"
#include "core/http/http_reader.h"
#include "core/http/token_request.h"
#include "tests/fuzz/fuzz_target.h"

#include <string>
#include <vector>

using namespace kvscope;
using namespace kvscope::http;

namespace {

/// The requests and the fault at the end, as one text.
std::string read(std::string_view bytes, std::size_t piece) {
    std::string seen;
    Reader reader({1024, 4096, 20});
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
        reader.read(bytes.substr(at, piece));
        while (reader.state() == Reader::State::Complete) {
            const Request request = reader.take();
            seen += request.method + ' ' + request.path + '?' + request.query + '\n';
            for (const auto& [name, value] : request.headers) seen += name + ':' + value + '\n';
            seen += request.body + '\n' + (request.keepAlive ? 'k' : 'c');
            for (const ApiKind kind : {ApiKind::Completion, ApiKind::Chat}) try {
                    seen += readApiRequest(kind, request.body).model;
                } catch (const ApiError& error) {
                    seen += errorJson(error);
                }
            try {
                seen += readTokenizeRequest(request.body).text;
            } catch (const ApiError& error) {
                seen += errorJson(error);
            }
            try {
                seen += std::to_string(readDetokenizeRequest(request.body).tokens.size());
            } catch (const ApiError& error) {
                seen += errorJson(error);
            }
        }
    }
    return seen + std::to_string(reader.fault().status) + reader.fault().message;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return fuzz::expectOnlyErrors([&] {
        const std::string_view bytes = fuzz::text(data, size);
        const std::string whole = read(bytes, bytes.size() + 1);
        if (read(bytes, 1) != whole || read(bytes, 7) != whole) std::terminate();
    });
}
