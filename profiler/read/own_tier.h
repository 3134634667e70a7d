// Runs without block slots in which not everything is resident.
#pragma once

namespace kvscope {

struct RunRow;

/// The method chooses tokens or parts of blocks and keeps what is on the device by its own rule (its
/// SelectionSpec::ownDeviceTier): the run's deviceSlots are 0, which else says that every block is resident.
bool hasOwnTier(const RunRow& run);

} // namespace kvscope
