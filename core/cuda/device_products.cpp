#include "core/cuda/device_products.h"

#include "core/cuda/cuda_engine.h"
#include "core/cuda/device_model.h"
#include "core/cuda/gpu_device.h"
#include "kernels/cuda/token/token.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace kvscope {
namespace {

constexpr const char* kMeasures = "products that are measured";
constexpr std::size_t kColdBytes = std::size_t(256) << 20; // more than twice the L2 cache of any GPU so far
constexpr int kMeasuredCandidates = 4; // each costs a graph and the loading of a kernel; later ones are seldom faster

/// All shapes of a model's bf16 products, where the engine leaves the choice to the table.
std::set<ProductShape> shapesOf(const DeviceModel& model) {
    std::set<ProductShape> out;
    const auto add = [&](const cuda::DeviceMatrix& matrix, ProductFinish finish) {
        if (matrix.rows > 0 && !isQuantised(matrix.type)) out.insert({matrix.rows, matrix.cols, finish});
    };
    for (const DeviceLayer& layer : model.layers) {
        for (const cuda::DeviceMatrix& part : layer.qkv)
            if (layer.qkvBias == nullptr) add(part, ProductFinish::Normed);
        if (layer.oBias == nullptr) add(layer.o, ProductFinish::Plain);
        add(layer.latent.queryUp, ProductFinish::Normed);
        add(layer.mlp.gateUp, ProductFinish::Gated);
        add(layer.mlp.down, ProductFinish::Plain);
    }
    add(model.lmHead, ProductFinish::Normed);
    return out;
}

int copiesOf(const ProductShape& shape) {
    const std::size_t bytes = Elements(shape.rows, shape.cols) * sizeof(__nv_bfloat16);
    constexpr std::size_t kMost = 64; // small matrices stay in a cache in a model, too
    return int(std::clamp<std::size_t>((kColdBytes + bytes - 1) / bytes, 2, kMost));
}

} // namespace

ProductMachine productMachine(const cuda::MatrixLibrary* library) {
    const cudaDeviceProp gpu = usableGpu();
    return {gpu.name, gpu.major * 10 + gpu.minor, library != nullptr ? library->version() : 0};
}

ProductJob::ProductJob(const ProductShape& shape, int maxInputs) : shape_(shape), copies_(copiesOf(shape)) {
    const int rows = shape.rows, cols = shape.cols, n = maxInputs;
    const Elements weights(copies_, rows, cols);
    arena_.plan(w_, weights, kMeasures);
    arena_.plan(half_, {n, cols}, kMeasures);
    arena_.plan(hidden_, {n, rows}, kMeasures);
    arena_.plan(x_, {n, cols}, kMeasures);
    arena_.plan(y_, {n, rows}, kMeasures);
    arena_.plan(norm_, cols, kMeasures);
    arena_.take();
    cuda::fillNormal(w_, weights, 0.02f, 1); // not zeros, which take less power
    cuda::fillNormal(half_, Elements(n, cols), 1, 2);
    cuda::check(cudaDeviceSynchronize(), "preparing products that are measured");
}

cuda::DeviceMatrix ProductJob::weights(int copy) const {
    return {RowsOf(w_, {shape_.rows, shape_.cols})[copy], shape_.rows, shape_.cols};
}

cuda::LinearOutput ProductJob::output() const {
    if (shape_.finish == ProductFinish::Gated) return {nullptr, 0, false, nullptr, hidden_};
    return {y_, shape_.rows, shape_.finish == ProductFinish::Plain, nullptr, nullptr}; // o and down add to the stream
}

void ProductJob::run(cuda::Linear& linear, int inputs, int copy) const {
    if (shape_.finish == ProductFinish::Plain)
        linear.run(weights(copy), half_, inputs, output());
    else
        linear.run(weights(copy), x_, shape_.cols, inputs, {norm_, 1e-5f}, output());
}

ProductTimer::ProductTimer(const ProductShape& shape, int maxInputs)
    : shape_(shape), job_(shape, maxInputs), launch_(gpuLaunch(usableGpu())), stream_(cuda::Stream::make()) {
    launch_.stream = stream_.get();
    linear_ = std::make_unique<cuda::Linear>(launch_, maxInputs, shape.cols);
    machine_ = productMachine(cuda::MatrixLibrary::load().get());
}

double ProductTimer::secondsOf(const std::function<void(int copy)>& chain, int repeats) {
    const auto all = [&] {
        for (int i = 0; i < job_.copies(); ++i) chain(i);
    };
    constexpr const char* kDoing = "measuring products";
    all(); // attributes and plans are made outside the capture
    cuda::check(cudaStreamSynchronize(launch_.stream), kDoing);
    const auto graph = cuda::Executable::of(cuda::Graph::capture(launch_.stream, all));
    const cuda::Event begin = cuda::Event::makeTimed(), end = cuda::Event::makeTimed();
    std::vector<double> times;
    for (int i = 0; i <= repeats; ++i) {
        cuda::check(cudaEventRecord(begin.get(), launch_.stream), kDoing);
        cuda::check(cudaGraphLaunch(graph.get(), launch_.stream), kDoing);
        cuda::check(cudaEventRecord(end.get(), launch_.stream), kDoing);
        cuda::check(cudaEventSynchronize(end.get()), kDoing);
        float ms = 0;
        cuda::check(cudaEventElapsedTime(&ms, begin.get(), end.get()), kDoing);
        if (i > 0) times.push_back(double(ms) * 1e-3 / job_.copies()); // the first one warms up
    }
    std::ranges::sort(times);
    return times[times.size() / 2];
}

double ProductTimer::seconds(int inputs, ProductChoice choice, int repeats) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    if (choice.kernel == ProductKernel::Library &&
        choice.candidate >= linear_->proposals(job_.weights(0), inputs, job_.output()))
        return kNever;
    linear_->force(choice);
    double time = kNever;
    try {
        time = secondsOf([&](int copy) { job_.run(*linear_, inputs, copy); }, repeats);
    } catch (const Error& error) {
        if (error.kind != ErrorKind::Unsupported) throw; // too little shared memory for the tiles
    }
    linear_->force({});
    return time;
}

MeasuredProducts measureProducts(const Model& model, const Progress& progress, const std::stop_token& stop) {
    const auto library = cuda::MatrixLibrary::load();
    const ProductMachine machine = productMachine(library.get());
    const ProductTable before = *loadProducts(machine, ProductSource::Measured).table;
    const auto shapes = shapesOf(*DeviceModel::shapesOf(model));
    MeasuredProducts out;
    std::map<ProductShape, ProductTable::Choices> measured;
    double done = 0;
    for (const ProductShape& shape : shapes) {
        report(progress, done++ / double(shapes.size()),
               fmt::format("{} x {}, {}", shape.rows, shape.cols, nameOf(shape.finish)));
        if (before.measured().contains(shape)) {
            ++out.kept;
            continue;
        }
        ProductTimer timer(shape, kProductInputs.back());
        measured[shape] = measureProduct(
            before, shape, kMeasuredCandidates,
            [&](const ProductShape&, int inputs, ProductChoice choice) { return timer.seconds(inputs, choice); }, stop);
    }
    const ProductTable table = before.with(measured);
    if (!measured.empty()) storeProducts(table);
    out.file = productFile(machine);
    out.name = table.name();
    out.measured = int(measured.size());
    return out;
}

} // namespace kvscope
