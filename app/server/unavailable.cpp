// Takes the place of connection.cpp and server.cpp where Asio was not found.
#include "app/server/server.h"

#include "base/error.h"

namespace kvscope::server {

std::string whyNoServer() { return "this program was built without Asio, so that it has no server"; }

int serve(const ServerOptions&, const LoadEngine&) {
    throw Error(ErrorKind::Unsupported, whyNoServer(), "install libasio-dev and build again");
}

} // namespace kvscope::server
