// Says why a method cannot run in a session. This file makes the sentence from what the method says it can do, and adds
// the methods of the registry that could run.
#pragma once

#include "base/error.h"
#include "core/select/method.h"

#include <optional>
#include <string_view>

namespace kvscope {

/// The first reason why the method cannot run as it is used, in a sequence of `longest` tokens; nothing where it can.
/// model: the sentence does not recommend methods whose weights this model lacks; null: it does not look at weights.
std::optional<Error> findRefusal(const MethodEntry& method, const MethodUse& use, int longest,
                                 const Model* model = nullptr);
/// @throws Error(Unsupported), see findRefusal
void refuseUnable(const MethodEntry& method, const MethodUse& use, int longest, const Model* model = nullptr);

/// The name of the kind of model, such as "block-diffusion models". A method that cannot run on one model of a kind can
/// run on none.
std::string_view deniedModels(const BlockDiffusion& diffusion);

/// The refusal of a method that has no way to denoise blocks, on a model that needs one.
Error refusalOnDenoisers(const MethodEntry& method, const BlockDiffusion& diffusion, const std::string& model);

/// The types of full KV blocks with which the method, with its default parameters, runs on the backend. For a method
/// that runs only on models of one kind: the backend's own type alone.
std::vector<KvType> kvTypesOf(const MethodEntry& method, Backend backend);

/// What a method denoises, on every backend.
struct DenoisingReach {
    bool blocks = false;       // of block-diffusion models
    bool canvases = false;     // of masked-diffusion models
    bool prefixOnHost = false; // the prefix of a block can wait on the host, whose pages the method chooses
};
/// What the method denoises on the backend, with its default parameters.
DenoisingReach denoisingReach(const MethodEntry& method);

/// Whether the method, with its default parameters for this model, runs on the backend in a sequence of `longest`
/// tokens.
bool couldRun(const MethodEntry& method, const ModelConfig& config, Backend backend, int longest);

} // namespace kvscope
