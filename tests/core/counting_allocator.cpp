// The C library's allocator with a count around it: what a program defines under these names takes the place of the
// library's, for operator new and for libraries too.
#include "tests/core/counting_allocator.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <malloc.h>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KVSCOPE_COUNTS 1
#endif

namespace kvscope::test {
namespace {

std::atomic<std::int64_t> held{0}, most{0};

#ifdef KVSCOPE_COUNTS
void* taken(void* pointer) {
    if (pointer == nullptr) return nullptr;
    const std::int64_t now = held += std::int64_t(malloc_usable_size(pointer));
    std::int64_t before = most;
    while (now > before && !most.compare_exchange_weak(before, now)) {
    }
    return pointer;
}
void given(void* pointer) {
    if (pointer != nullptr) held -= std::int64_t(malloc_usable_size(pointer));
}
#endif

} // namespace

std::int64_t bytesHeld() { return held; }
std::int64_t mostBytesHeld() { return most; }
void forgetMost() { most = held.load(); }

#ifdef KVSCOPE_COUNTS
bool countsAllocations() { return true; }
#else
bool countsAllocations() { return false; }
#endif

} // namespace kvscope::test

#ifdef KVSCOPE_COUNTS
// NOLINTBEGIN: the names and signatures are the C library's
extern "C" {
void* __libc_malloc(std::size_t);
void __libc_free(void*);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) noexcept { return kvscope::test::taken(__libc_malloc(bytes)); }
void free(void* pointer) noexcept {
    kvscope::test::given(pointer);
    __libc_free(pointer);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
    return kvscope::test::taken(__libc_calloc(count, bytes));
}
void* realloc(void* pointer, std::size_t bytes) noexcept {
    const std::int64_t before = pointer != nullptr ? std::int64_t(malloc_usable_size(pointer)) : 0;
    void* const moved = __libc_realloc(pointer, bytes);
    if (moved != nullptr || bytes == 0) kvscope::test::held -= before;
    return kvscope::test::taken(moved);
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
    return kvscope::test::taken(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept { return memalign(alignment, bytes); }
int posix_memalign(void** pointer, std::size_t alignment, std::size_t bytes) noexcept {
    void* const block = memalign(alignment, bytes);
    if (block == nullptr) return ENOMEM;
    *pointer = block;
    return 0;
}
}
// NOLINTEND
#endif
