#include "core/cuda/select/guessed_queries.h"

#include "kernels/cuda/methods/lookahead.h"

namespace kvscope {

void GuessedQueries::plan(DeviceArena& arena, const char* what) {
    const Elements queries(context_.rows(), context_.shape.queryHeads, context_.shape.dim);
    arena.plan(projected_, queries, what);
    arena.plan(query_, queries, what);
}

const __nv_bfloat16* GuessedQueries::make(const DeviceStep& step, LayerId target) const {
    const ModelConfig& config = context_.config;
    const DeviceLayer &here = context_.weights.layers[step.layer], &next = context_.weights.layers[target];
    const int width = context_.shape.queryHeads * context_.shape.dim;
    cuda::DeviceMatrix queries = next.qkv.front(); // the queries' rows come first; the tiles after them are left out
    queries.rows = width;
    context_.linear->run(queries, step.x, config.hidden, context_.rows(), {here.inputNorm, config.streamNormEps()},
                         {projected_, width, false, next.qkvBias, nullptr}, step.stage1Mark);
    cuda::GuessArgs guess;
    guess.rows = context_.rows();
    guess.heads = context_.shape.queryHeads;
    guess.dim = context_.shape.dim;
    guess.projected = projected_;
    guess.interleaved = config.rope.interleaved;
    guess.cos = context_.tables.ropeCos;
    guess.sin = context_.tables.ropeSin;
    guess.ropeFirst = context_.tables.ropeFirst;
    guess.position = step.position;
    guess.active = step.active;
    guess.norm = next.headNorms.query;
    guess.eps = next.headNorms.eps;
    guess.q = query_;
    cuda::rotateGuess(context_.launch, guess);
    return query_;
}

} // namespace kvscope
