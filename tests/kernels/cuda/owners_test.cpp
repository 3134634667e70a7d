// What is lent is given back, whatever is refused on the way. No GPU: the calls are counted, not made.
#include "kernels/cuda/device/owners.h"

#include "kernels/cuda/linear/linear.h"
#include "tests/kernels/cuda/counting_calls.h"
#include "tests/kernels/cuda/device.h"
#include "tests/support/places.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <regex>
#include <type_traits>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using test::CountingCalls;
using test::expectNothingLost;
using testing::HasSubstr;

template <class Owner>
constexpr bool kMovesOnly = std::is_nothrow_move_constructible_v<Owner>&& std::is_nothrow_move_assignable_v<Owner>&&
                                std::is_nothrow_destructible_v<Owner> &&
                            !std::is_copy_constructible_v<Owner> && !std::is_copy_assignable_v<Owner>;
static_assert(kMovesOnly<Stream> && kMovesOnly<Event> && kMovesOnly<Graph> && kMovesOnly<Executable> &&
              kMovesOnly<DeviceMemory> && kMovesOnly<PinnedMemory>);

TEST(Owners, CountWhatLivesAndItsBytes) {
    CountingCalls calls;
    const ScopedDeviceCalls use(calls);
    const Living before = living();
    {
        const Stream stream = Stream::make();
        const Event event = Event::make(), timed = Event::makeTimed();
        const Graph graph = Graph::capture(stream.get(), [] {});
        const Executable executable = Executable::of(graph);
        const DeviceMemory device(300, "testing"), more(50, "testing"), none(0, "testing");
        const PinnedMemory host(70, "the store"), mapped(calls.mappedFrom() + 5, "the store");
        EXPECT_EQ(none.data(), nullptr);
        Living now = living();
        EXPECT_EQ(now.streams - before.streams, 1);
        EXPECT_EQ(now.events - before.events, 2);
        EXPECT_EQ(now.graphs - before.graphs, 1);
        EXPECT_EQ(now.executables - before.executables, 1);
        EXPECT_EQ(now.deviceBuffers - before.deviceBuffers, 2);
        EXPECT_EQ(now.deviceBytes - before.deviceBytes, 350);
        EXPECT_EQ(now.hostBuffers - before.hostBuffers, 2);
        EXPECT_EQ(now.hostBytes - before.hostBytes, 75 + std::int64_t(calls.mappedFrom()));
    }
    EXPECT_EQ(living(), before);
    EXPECT_EQ(calls.living(), "");
}

TEST(Owners, AreEmptyAfterAMoveAndGiveBackWhatTheyHeld) {
    CountingCalls calls;
    const ScopedDeviceCalls use(calls);
    Event first = Event::make(), second = Event::make();
    const cudaEvent_t kept = first.get();
    second = std::move(first);
    EXPECT_EQ(second.get(), kept);
    EXPECT_FALSE(first); // NOLINT(bugprone-use-after-move): that is the question
    EXPECT_EQ(calls.living(), "1 event");
    DeviceMemory small(10, "testing"), large(20, "testing");
    small = std::move(large);
    EXPECT_EQ(small.bytes(), 20U);
    EXPECT_EQ(large.bytes(), 0U); // NOLINT(bugprone-use-after-move)
    PinnedMemory host(10, "the store");
    PinnedMemory taken(std::move(host));
    EXPECT_EQ(host.bytes(), 0U); // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(host.data(), nullptr);
    EXPECT_EQ(calls.living(), "1 device memory, 1 event, 1 host memory");
    second = {}, small = {}, taken = {};
    EXPECT_EQ(calls.living(), "");
    EXPECT_EQ(calls.created(), calls.destroyed());
}

TEST(Owners, DestroyThroughTheCallsThatMadeThem) {
    CountingCalls calls;
    Event event;
    {
        const ScopedDeviceCalls use(calls);
        event = Event::make();
    }
    EXPECT_NE(&deviceCalls(), &calls);
    event = {};
    EXPECT_EQ(calls.living(), "");
}

TEST(Owners, LoseNothingWhicheverCallIsRefused) {
    expectNothingLost([] {
        const Stream stream = Stream::make(), urgent = Stream::make(StreamKind::Urgent);
        const Event event = Event::make(), timed = Event::makeTimed();
        const Executable executable = Executable::of(Graph::capture(stream.get(), [] {}));
        const DeviceMemory device(300, "testing");
        std::vector<PinnedMemory> hosts;
        hosts.emplace_back(70, "the store");
        hosts.emplace_back(deviceCalls().mappedFrom(), "the store");
    });
}

TEST(Owners, EndARecordingWhoseWorkFails) {
    CountingCalls calls;
    const ScopedDeviceCalls use(calls);
    const Stream stream = Stream::make();
    const auto fails = [] { throw std::runtime_error("this kernel does not fit"); };
    for (int i = 0; i < 3; ++i) EXPECT_THROW(Graph::capture(stream.get(), fails), std::runtime_error);
    calls.refuseAfter(1); // the end of the recording is refused as well: what `work` threw is what counts
    EXPECT_THROW(Graph::capture(stream.get(), fails), std::runtime_error);
    EXPECT_EQ(calls.living(), "1 stream");
}

TEST(Owners, SayWhatWasRefused) {
    CountingCalls calls;
    const ScopedDeviceCalls use(calls);
    const auto refusal = [&](auto make) {
        calls.refuseAfter(0);
        try {
            make();
        } catch (const Error& error) {
            EXPECT_EQ(error.kind, ErrorKind::OutOfMemory);
            return std::string(error.what());
        }
        return std::string("nothing was refused");
    };
    EXPECT_THAT(refusal([] { DeviceMemory(300, "copying the weights"); }), HasSubstr("while copying the weights"));
    EXPECT_THAT(refusal([] { PinnedMemory(300, "the KV store"); }), HasSubstr("the KV store needs 0.00 GiB"));
    EXPECT_THAT(refusal([&] { PinnedMemory(calls.mappedFrom(), "the KV store"); }), HasSubstr("the system refuses it"));
}

TEST(Linear, LosesNothingWhicheverCallIsRefused) {
    expectNothingLost([] {
        Linear linear({}, 4096, 64, false);
        DeviceMatrix packed;
        packed.rows = packed.cols = 64;
        packed.type = DType::Q4_0;
        packed.packed = reinterpret_cast<const std::byte*>(&packed); // not read here
        LinearOutput out;
        out.hidden = reinterpret_cast<__nv_bfloat16*>(&packed);
        linear.prepare(packed, 1024, out);
        linear.prepare(packed, 4096, out);
    });
}

/// Whoever makes a handle beside the owners must also destroy it by hand, and forgets to where something throws.
TEST(Owners, AloneMakeAndDestroyHandles) {
    namespace fs = std::filesystem;
    const std::regex call(
        R"(\bcuda(Malloc|Free|HostAlloc|HostRegister|HostUnregister|StreamCreate|StreamDestroy|EventCreate|EventDestroy|StreamBeginCapture|StreamEndCapture|GraphInstantiate|GraphDestroy|GraphExecDestroy)\w*\()");
    const fs::path source(kvscope::test::source(""));
    int files = 0;
    for (const char* room : {"kernels", "core", "bench", "tests", "app", "profiler"})
        for (const auto& entry : fs::recursive_directory_iterator(source / room)) {
            const std::string extension = entry.path().extension().string();
            if (extension != ".cpp" && extension != ".h" && extension != ".cu" && extension != ".cuh") continue;
            if (entry.path().filename() == "device_calls.cpp") continue;
            ++files;
            std::ifstream file(entry.path());
            std::string line;
            for (int number = 1; std::getline(file, line); ++number)
                EXPECT_FALSE(std::regex_search(line, call))
                    << fs::relative(entry.path(), source).string() << ":" << number << ": " << line;
        }
    EXPECT_GT(files, 500);
}

class OwnersOnCuda : public test::CudaTest {};

TEST_F(OwnersOnCuda, GiveBackWhatTheyTook) {
    const Living before = living();
    {
        const Stream urgent = Stream::make(StreamKind::Urgent);
        const Event timed = Event::makeTimed();
        const DeviceMemory device(std::size_t(64) << 20, "testing");
        const PinnedMemory host(std::size_t(1) << 20, "the store");
        const auto clear = [&] {
            check(cudaMemsetAsync(device.data(), 7, device.bytes(), urgent.get()), "testing");
            check(cudaMemcpyAsync(host.data(), device.data(), host.bytes(), cudaMemcpyDeviceToHost, urgent.get()),
                  "testing");
        };
        const Executable executable = Executable::of(Graph::capture(urgent.get(), clear));
        EXPECT_EQ(host.as<char>()[0], 0) << "a recording does nothing";
        check(cudaGraphLaunch(executable.get(), urgent.get()), "testing");
        check(cudaStreamSynchronize(urgent.get()), "testing");
        EXPECT_EQ(host.as<char>()[host.bytes() - 1], 7);
        EXPECT_THROW(Graph::capture(urgent.get(), [] { throw std::runtime_error("testing"); }), std::runtime_error);
        check(cudaGraphLaunch(executable.get(), urgent.get()), "testing"); // the stream records no longer
    }
    EXPECT_EQ(living(), before);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
