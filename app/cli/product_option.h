// --products: which table chooses the kernels of a GPU's products.
#pragma once

#include "app/terminal/options.h"

#include "core/plan/backend.h"

#include <string>
#include <string_view>

namespace kvscope::cli {

void addProductOption(Options& command, std::string& products);

/// Sets what all sessions of this process choose by. recorded: the table of the recorded run that goes on or is run
/// again, which counts where the option is not given; or empty. Call this before a session begins. @throws
/// Error(BadInput) where the option is given for the CPU
void chooseProducts(const std::string& products, Backend backend, std::string_view recorded = {});

/// Says on standard error, after a session has begun, that measured products could not be used, or that the recorded
/// run's were others.
void remarkOnProducts(std::string_view recorded = {});

} // namespace kvscope::cli
