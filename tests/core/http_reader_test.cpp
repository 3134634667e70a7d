// The strict reader of HTTP requests: what it takes, what it refuses and with which status.
#include "core/http/http_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope::http {
namespace KVSCOPE_TEST_FILE {

using State = Reader::State;
using ::testing::HasSubstr;

std::string get(const std::string& more = {}) { return "GET /health HTTP/1.1\r\nHost: localhost\r\n" + more + "\r\n"; }
std::string post(const std::string& body, const std::string& more = {}) {
    return "POST /v1/completions?a=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n" + more + "\r\n" + body;
}
int statusOf(const std::string& bytes, const Limits& limits = {}) {
    Reader reader(limits);
    reader.read(bytes);
    return reader.state() == State::Complete ? 200 : reader.fault().status;
}

TEST(HttpReader, ReadsARequestFromWhateverPieces) {
    const std::string text = post("{\"a\": 1}", "X-Thing: \t some  value \t\r\nEXPECT: 100-Continue\r\n");
    for (const std::size_t piece : {std::size_t(1), std::size_t(2), std::size_t(7), text.size()}) {
        Reader reader;
        EXPECT_FALSE(reader.begun());
        for (std::size_t i = 0; i < text.size(); i += piece) {
            EXPECT_NE(reader.state(), State::Complete) << i;
            reader.read(std::string_view(text).substr(i, piece));
            EXPECT_TRUE(reader.begun());
        }
        ASSERT_EQ(reader.state(), State::Complete) << reader.fault().message;
        const Request request = reader.take();
        EXPECT_EQ(request.method, "POST");
        EXPECT_EQ(request.path, "/v1/completions");
        EXPECT_EQ(request.query, "a=1");
        EXPECT_EQ(request.body, "{\"a\": 1}");
        EXPECT_EQ(*request.header("x-thing"), "some  value");
        EXPECT_EQ(request.header("x-other"), nullptr);
        EXPECT_TRUE(request.expects);
        EXPECT_TRUE(request.keepAlive);
        EXPECT_FALSE(reader.begun());
    }
}

TEST(HttpReader, PipelinedRequestsComeInTheirOrder) {
    Reader reader;
    reader.read(post("one") + "\r\n" + get("Connection: Close\r\n") + post("th"));
    ASSERT_EQ(reader.state(), State::Complete);
    EXPECT_GT(reader.waiting(), 0u);
    EXPECT_EQ(reader.take().body, "one");
    ASSERT_EQ(reader.state(), State::Complete);
    EXPECT_FALSE(reader.take().keepAlive);
    EXPECT_EQ(reader.take().body, "th");
    EXPECT_EQ(reader.state(), State::Head);
}

TEST(HttpReader, OldClientsCloseUnlessTheySayOtherwise) {
    Reader reader;
    reader.read("GET / HTTP/1.0\r\n\r\n");
    ASSERT_EQ(reader.state(), State::Complete);
    EXPECT_FALSE(reader.take().keepAlive);
    reader.read("GET / HTTP/1.0\r\nConnection: foo , Keep-Alive\r\n\r\n");
    ASSERT_EQ(reader.state(), State::Complete);
    EXPECT_TRUE(reader.take().keepAlive);
}

TEST(HttpReader, RefusesWhatIsNoRequest) {
    const std::string host = "Host: a\r\n";
    EXPECT_EQ(statusOf(get()), 200);
    for (const std::string& line :
         {std::string("GET  / HTTP/1.1"), std::string("GET / HTTP/1.1 "), std::string("GET /"), std::string("GET"),
          std::string(" GET / HTTP/1.1"), std::string("G(T / HTTP/1.1"), std::string("GET https://a/ HTTP/1.1"),
          std::string("GET http:/// HTTP/1.1"), std::string("GET http://a@b/ HTTP/1.1"),
          std::string("GET ftp://a/ HTTP/1.1"), std::string("GET * HTTP/1.1"), std::string("GET /a#b HTTP/1.1"),
          std::string("GET /\x01 HTTP/1.1"), std::string("GET /\xc3\xa9 HTTP/1.1"), std::string("GET / http/1.1"),
          std::string("\x16\x03\x01\x02")})
        EXPECT_EQ(statusOf(line + "\r\n" + host + "\r\n"), 400) << line;
    EXPECT_EQ(statusOf("GET / HTTP/2.0\r\n" + host + "\r\n"), 505);
    for (const char* line : {"Name : value", ": value", "no colon", " folded: value", "a: \x01", "a: b\rc", "a: b\nc",
                             "Host: b", "Content-Length: -1", "Content-Length: +1", "Content-Length: 0x1",
                             "Content-Length:", "Content-Length: 1, 1", "Content-Length: 0\r\nContent-Length: 0"})
        EXPECT_EQ(statusOf(get(std::string(line) + "\r\n")), 400) << line;
    EXPECT_EQ(statusOf("GET / HTTP/1.1\r\n\r\n"), 400);
    EXPECT_EQ(statusOf(get(std::string("a: \0\r\n", 6))), 400);
    EXPECT_EQ(statusOf(get("Expect: other\r\n")), 417);
    EXPECT_EQ(statusOf(post("", "Transfer-Encoding: chunked\r\n")), 411);
    EXPECT_EQ(statusOf("POST / HTTP/1.1\r\n" + host + "\r\n"), 411);
    EXPECT_EQ(statusOf(post("{}", "Content-Encoding: gzip\r\n")), 415);
    EXPECT_EQ(statusOf(post("{}", "Content-Encoding: Identity\r\n")), 200);
}

/// A server must take a target that is a whole address; its host counts in place of the header (RFC 9112, 3.2.2).
TEST(HttpReader, ATargetMayBeAWholeAddress) {
    const struct {
        const char *line, *host, *path, *query;
    } cases[] = {{"GET http://other:80/v1/models?a=b HTTP/1.1\r\nHost: a\r\n", "other:80", "/v1/models", "a=b"},
                 {"GET HTTP://other HTTP/1.1\r\nHost: a\r\n", "other", "/", ""},
                 {"GET http://[::1]:80/x HTTP/1.0\r\n", "[::1]:80", "/x", ""},
                 {"GET /http://other/ HTTP/1.1\r\nHost: a\r\n", "a", "/http://other/", ""}};
    for (const auto& [line, host, path, query] : cases) {
        Reader reader;
        // The request behind it has a host of its own.
        reader.read(std::string(line) + "\r\n" + get());
        ASSERT_EQ(reader.state(), State::Complete) << line << reader.fault().message;
        const Request request = reader.take();
        EXPECT_EQ(request.path, path) << line;
        EXPECT_EQ(request.query, query) << line;
        ASSERT_NE(request.header("host"), nullptr) << line;
        EXPECT_EQ(*request.header("host"), host) << line;
        ASSERT_EQ(reader.state(), State::Complete);
        EXPECT_EQ(*reader.take().header("host"), "localhost");
    }
    EXPECT_EQ(statusOf("GET http://a/ HTTP/1.1\r\n\r\n"), 400) << "the header has to be there all the same";
}

/// A fault is told at the byte that makes it one, before the end of the headers, and the same fault is told however the
/// bytes are cut into pieces.
TEST(HttpReader, TellsAFaultWithTheByteThatMakesItOne) {
    const struct {
        std::string fine, wrong; // nothing is wrong before the byte `wrong` has come
        int status;
        const char* message;
    } cases[] = {
        {"", "\x16", 400, "TLS"}, // a client that was told https://
        {"\r\n", "\x16", 400, "TLS"},
        {"", std::string(1, '\0'), 400, "method of HTTP"},
        {"", "\n", 400, "method of HTTP"},
        {"\r", "x", 400, "method of HTTP"},
        {"\r\n", "\r", 400, "method of HTTP"},
        {"GET /health HTTP/1.1", "\n", 400, "LF alone"},
        {"GET /health HTTP/1.1\r\nHost: localhost", "\n", 400, "LF alone"},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\n", "\n", 400, "LF alone"},
        {"SSH-2.0-OpenSSH_9.2\r", "\n", 400, "request line"},
        {"PRI * HTTP/2.0\r", "\n", 505, "version"}, // a client with prior knowledge of HTTP/2
        {"GET / HTTP/1.1\r\nnonsense\r", "\n", 400, "name and a colon"},
    };
    for (const auto& each : cases) {
        Reader pieces, whole;
        for (const char c : each.fine) {
            EXPECT_EQ(pieces.state(), State::Head) << each.fine;
            pieces.read({&c, 1});
        }
        EXPECT_EQ(pieces.state(), State::Head) << each.fine;
        pieces.read(each.wrong);
        whole.read(each.fine + each.wrong + "and more\n\r\n\r\n");
        for (const Reader* reader : {&pieces, &whole}) {
            EXPECT_EQ(reader->state(), State::Failed) << each.fine;
            EXPECT_EQ(reader->fault().status, each.status) << each.fine;
            EXPECT_THAT(reader->fault().message, HasSubstr(each.message));
        }
    }
    Reader second;
    second.read(get());
    ASSERT_EQ(second.state(), State::Complete);
    second.take();
    second.read("\x16");
    EXPECT_EQ(second.fault().status, 400) << "also behind a request";
}

TEST(HttpReader, LimitsHoldBeforeTheBytesAreThere) {
    EXPECT_EQ(statusOf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1073741824\r\n\r\n"), 413);
    EXPECT_EQ(statusOf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999999\r\n\r\n"), 413);
    EXPECT_EQ(statusOf(post("12345"), {1000, 5, 10}), 200);
    EXPECT_EQ(statusOf(post("123456"), {1000, 5, 10}), 413);
    const std::string head = get();
    EXPECT_EQ(statusOf(head, {head.size(), 0, 10}), 200);
    EXPECT_EQ(statusOf(head, {head.size() - 1, 0, 10}), 431);
    EXPECT_EQ(statusOf(std::string(17 << 10, 'a')), 431);
    std::string many;
    for (int i = 0; i < 100; ++i) many += "a: b\r\n";
    EXPECT_EQ(statusOf(get(many)), 431);
}

TEST(HttpReader, NothingIsReadBehindAFault) {
    Reader reader;
    reader.read("nonsense\r\n\r\n" + get());
    EXPECT_EQ(reader.state(), State::Failed);
    EXPECT_THAT(reader.fault().message, HasSubstr("request line"));
    EXPECT_EQ(reader.read(get()), State::Failed);
    EXPECT_EQ(reader.waiting(), 0u);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::http
