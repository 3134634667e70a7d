// A table of the requests that an iteration served.
#pragma once

#include "base/indexed.h"
#include "profiler/read/serving.h"
#include "ui/views/serving/side_table.h"

#include <vector>

namespace kvscope::ui {

class MembersTable final : public SideTable {
    Q_OBJECT
public:
    explicit MembersTable(QWidget* parent = nullptr);

    void setMembers(std::vector<MemberRow> members);
    const std::vector<MemberRow>& members() const { return members_; }
    /// Marks the request's row, if it has one.
    void choose(std::int64_t request);

signals:
    void requestClicked(std::int64_t request);

private:
    Numbered<MemberRow> members_;
};

} // namespace kvscope::ui
