// Why a method cannot run in a session. One place makes the sentence, from what the method says it can do, and asks the
// registry which methods could.
#pragma once

#include "base/error.h"
#include "core/select/method.h"

#include <optional>
#include <string_view>

namespace kvscope {

/// The first reason why the method cannot run as it is used, in a sequence of `longest` tokens; nothing where it can.
/// model: methods whose weights it lacks are not recommended; null: weights are not asked for.
std::optional<Error> findRefusal(const MethodEntry& method, const MethodUse& use, int longest,
                                 const Model* model = nullptr);
/// @throws Error(Unsupported), see findRefusal
void refuseUnable(const MethodEntry& method, const MethodUse& use, int longest, const Model* model = nullptr);

/// The kind of model that this is, in words, such as "block-diffusion models". A method that cannot run on one model of
/// a kind can run on none of that kind.
std::string_view deniedModels(const BlockDiffusion& diffusion);

/// The refusal of a method that has no way to denoise blocks, on a model that needs one.
Error refusalOnDenoisers(const MethodEntry& method, const BlockDiffusion& diffusion, const std::string& model);

/// The types of full KV blocks with which the method, with its own parameters, runs on the backend; the backend's own
/// where the method runs on models of its own kind alone.
std::vector<KvType> kvTypesOf(const MethodEntry& method, Backend backend);

/// What a method denoises on a backend.
struct DenoisingReach {
    bool blocks = false;       // of block-diffusion models
    bool canvases = false;     // of masked-diffusion models
    bool prefixOnHost = false; // the prefix of a block can wait on the host, whose pages the method chooses
};
DenoisingReach denoisingReach(const MethodEntry& method, Backend backend);

/// Whether the method, with its own parameters for this model, runs on the backend in a sequence of so many tokens.
bool couldRun(const MethodEntry& method, const ModelConfig& config, Backend backend, int longest);

} // namespace kvscope
