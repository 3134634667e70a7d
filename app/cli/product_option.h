// --products: which table chooses the kernels of a GPU's products.
#pragma once

#include "app/terminal/options.h"

#include "core/plan/backend.h"

#include <string>
#include <string_view>

namespace kvscope::cli {

void addProductOption(Options& command, std::string& products);

/// Sets the table by which all sessions of this process choose. recorded: the table of the recorded run that goes on or
/// is run again, used where the option is not given; may be empty. Call this before a session begins. @throws
/// Error(BadInput) where the option is given for the CPU
void chooseProducts(const std::string& products, Backend backend, std::string_view recorded = {});

/// After a session has begun: says on standard error that measured products could not be used, or that the recorded run
/// used others.
void remarkOnProducts(std::string_view recorded = {});

} // namespace kvscope::cli
