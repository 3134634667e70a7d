// Compare: two or more runs aligned by step, token or layer, in five pages that share the choice of runs.
#include "ui/views/compare/compare_pages.h"

#include "ui/frame/as_written.h"
#include "ui/frame/run_names.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/views/make_views.h"

#include <QHBoxLayout>
#include <QMenu>
#include <QStackedWidget>
#include <QTabBar>
#include <QToolButton>
#include <QVBoxLayout>

namespace kvscope::ui {

namespace {

class ComparePages final : public View {
    Q_OBJECT
public:
    ComparePages(Workspace& workspace, QWidget* parent) : View(parent), workspace_(workspace) {
        setAccessibleName(tr("Compare"));
        auto* column = new QVBoxLayout(this);
        column->setContentsMargins(0, 0, 0, 0);
        column->setSpacing(0);
        auto* head = new QHBoxLayout;
        head->setContentsMargins(12, 4, 12, 0);
        tabs_ = new QTabBar;
        tabs_->setObjectName(QStringLiteral("comparePages"));
        tabs_->setAccessibleName(tr("Pages of the comparison"));
        tabs_->setExpanding(false);
        tabs_->setDrawBase(false);
        pages_ = new QStackedWidget;
        const auto add = [&](const QString& title, const QString& help, View* page) {
            const int tab = tabs_->addTab(title);
            tabs_->setTabToolTip(tab, help);
            pages_->addWidget(page);
        };
        add(tr("Summary"), tr("Verdict and key numbers of every run against A"),
            makeCompareSummary(workspace, nullptr));
        add(tr("Difference"), tr("B minus A of a metric, layer by step, token or layer"),
            makeCompareDifference(workspace, nullptr));
        add(tr("Breakdown"), tr("Where the time goes in every run, with intervals over steps and repeats"),
            makeCompareBreakdown(workspace, nullptr));
        add(tr("Overlap"), tr("How alike the runs select: Jaccard per step and per layer"),
            makeCompareOverlap(workspace, nullptr));
        add(tr("Divergence"), tr("The first token and the first selection that differ"),
            makeCompareDivergence(workspace, nullptr));
        runs_ = new QToolButton;
        runs_->setObjectName(QStringLiteral("compareRuns"));
        runs_->setText(tr("Compared runs"));
        runs_->setAccessibleName(tr("Compared runs"));
        runs_->setToolTip(
            tr("Open runs that are compared with the shown one; runs with the same settings count as repeats"));
        runs_->setPopupMode(QToolButton::InstantPopup);
        runs_->setProperty("framed", true);
        menu_ = new QMenu(runs_);
        runs_->setMenu(menu_);
        head->addWidget(tabs_, 1);
        head->addWidget(runs_);
        column->addLayout(head);
        column->addWidget(pages_, 1);
        setFocusProxy(tabs_);
        connect(tabs_, &QTabBar::currentChanged, pages_, &QStackedWidget::setCurrentIndex);
        connect(menu_, &QMenu::aboutToShow, this, &ComparePages::fillMenu);
        for (const auto signal : {&Workspace::runsChanged, &Workspace::currentChanged, &Workspace::compareChanged})
            connect(&workspace_, signal, this, &ComparePages::describe);
        fillMenu();
        describe();
    }

    bool exportImage(const QString& path, QSize size) override { return page()->exportImage(path, size); }
    QString exportCsv() const override { return page()->exportCsv(); }
    QString sql() const override { return page()->sql(); }
    NumberWriter numbers() const override { return page()->numbers(); }
    void resetZoom() override { page()->resetZoom(); }
    void undoZoom() override { page()->undoZoom(); }
    void redoZoom() override { page()->redoZoom(); }
    void applyTheme(const Theme& theme) override {
        for (int i = 0; i < pages_->count(); ++i) qobject_cast<View*>(pages_->widget(i))->applyTheme(theme);
    }

private:
    View* page() const { return qobject_cast<View*>(pages_->currentWidget()); }

    void fillMenu() {
        menu_->clear();
        for (const OpenRun& run : workspace_.runs()) {
            const auto place = placeOf(workspace_, run.key);
            if (place == 0u) continue;
            QAction* action = menu_->addAction(
                buttonText(place ? letteredName(*place, workspace_) : runName(run, workspace_.runs())));
            action->setCheckable(true);
            action->setChecked(place.has_value());
            connect(action, &QAction::toggled, this,
                    [this, key = run.key](bool on) { workspace_.setCompared(key, on); });
        }
        if (menu_->isEmpty()) menu_->addAction(tr("No other run is open"))->setEnabled(false);
    }

    void describe() {
        const auto sides = workspace_.sides();
        const auto others = sides.empty() ? 0 : sides.size() - 1;
        runs_->setVisible(workspace_.runs().size() > 1); // the empty page has the ways on
        runs_->setText(others == 0   ? tr("Compare with…")
                       : others == 1 ? tr("A with B")
                                     : tr("A with B to %1").arg(runLetter(others)));
    }

    Workspace& workspace_;
    QTabBar* tabs_ = nullptr;
    QStackedWidget* pages_ = nullptr;
    QToolButton* runs_ = nullptr;
    QMenu* menu_ = nullptr;
};

} // namespace

View* makeCompareView(Workspace& workspace, QWidget* parent) { return new ComparePages(workspace, parent); }

} // namespace kvscope::ui

#include "compare_pages.moc"
