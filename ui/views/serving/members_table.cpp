#include "ui/views/serving/members_table.h"

#include "ui/frame/units.h"
#include "ui/views/serving/serving_strip.h"
#include "ui/views/serving/token_explanation.h"

#include <utility>

namespace kvscope::ui {

MembersTable::MembersTable(QWidget* parent)
    : SideTable({tr("Request"), tr("Did"), tr("Misses"), tr("Fetched"), tr("Working set")}, parent) {
    setObjectName(QStringLiteral("members"));
    setAccessibleName(tr("Whom the iteration served"));
    setToolTip(tr("Whom the chosen iteration served. Click a row to have that request's token explained."));
    connect(this, &SideTable::rowClicked, this, [this](int row) {
        if (row >= 0 && row < int(members_.size())) emit requestClicked(members_[row].request);
    });
}

void MembersTable::setMembers(std::vector<MemberRow> members) {
    members_ = std::move(members);
    std::vector<QStringList> rows;
    for (const MemberRow& member : members_) {
        const QString did =
            member.prefill ? tr("read %1, %2").arg(formatCount(member.tokens), layersText(member, QStringLiteral("–")))
                           : tr("decoded");
        rows.push_back({formatCount(member.request), did, member.prefill ? QString() : formatCount(member.misses),
                        member.prefill ? QString() : servingBytes(double(member.h2dBytes)),
                        servingBytes(double(member.workingSetBytes))});
    }
    setTexts(rows, 1);
}

void MembersTable::choose(std::int64_t request) {
    for (int row = 0; row < int(members_.size()); ++row)
        if (members_[row].request == request) setCurrentCell(row, 0);
}

} // namespace kvscope::ui
