"""The console's own words, one dict a language. Keys are the same in all; a test says so.

Placeholders are `{name}`. Texts hold no HTML.
"""

from typing import Literal

__all__ = ["LANGUAGES", "TEXTS", "Language", "chosen", "text"]

Language = Literal["en", "zh"]
LANGUAGES: dict[Language, Literal["en-US", "zh-CN"]] = {"en": "en-US", "zh": "zh-CN"}
"""As Quasar and browsers call them."""

EN = {
    # -- frame
    "console": "Console",
    "language": "中文",
    "theme": "Theme: light, dark, system",
    "log_out": "Log out",
    "help": "Keys",
    "help_go": "press g, then",
    "zone": "Times in {zone}",
    "not_allowed": "Your role doesn't allow this: it needs {role}.",
    "not_audited": "Nothing was done: the audit topic can't be written now.",
    "stale_users": "Kafka isn't reachable: you can look, but change nothing.",
    "no_page": "There is no such page.",
    "role_viewer": "viewer",
    "role_operator": "operator",
    "role_reviewer": "reviewer",
    "role_admin": "admin",
    "nothing": "Nothing here yet.",
    "failed": "It didn't work: {why}",
    # -- login
    "log_in": "Log in",
    "user": "User",
    "password": "Password",
    "wrong": "User or password is wrong.",
    "wait": "Too many failed logins. Try again in {seconds} s.",
    "busy": "Too many logins at once. Try again.",
    "users_unknown": "Kafka isn't reachable, so nobody can log in now.",
    "no_users": "There are no users yet. Make one in a terminal:",
    "link_used": "This link was used already. Make a user, or start again for a new link.",
    "foreign": "This came from another page. Open the console and try again.",
    # -- pages
    "page_overview": "Overview",
    "page_topics": "Topics",
    "page_settings": "Settings",
    # -- overview
    "events_in": "Events in",
    "results_out": "Results",
    "per_second": "a second, over {span}",
    "lag": "Lag",
    "lag_note": "records not taken yet, all stages",
    "waiting": "Wait for a model",
    "oldest": "the oldest for {age}",
    "cost": "Cost today",
    "cost_note": "since the day began, or the worker",
    "of_budget": "of {limit} budget",
    "dead": "Dead letters",
    "errors": "Stopped partitions",
    "errors_note": "{failures} failed transactions, {refusals} refused calls in {span}",
    "over_span": "in the last {span}",
    "workers": "Workers",
    "workers_note": "alive; {silent} silent",
    "no_workers": "No worker is alive. Start one: headrace worker",
    "no_kafka": "Kafka isn't reachable. Numbers of workers may still come; results don't.",
    "silent_worker": "Worker {worker} doesn't answer ({why}): what it knows is missing here.",
    "tiers": "Who decided",
    "tier_rule": "rule",
    "tier_light": "light",
    "tier_deep": "deep",
    "tier_review": "review",
    "lag_by": "Lag by stage",
    "stage": "stage",
    "partitions": "partitions",
    "total": "total",
    "providers": "Model providers",
    "breaker_closed": "asked",
    "breaker_open": "left alone after failures",
    "budget": "Budget of the day",
    "spent": "{settled} spent, {leased} reserved, of {limit}",
    "live": "Newest results",
    "live_note": "a sample of at most {count}",
    "pause": "Pause",
    "go_on": "Go on",
    "last_hour": "Last hour",
    "no_budget": "No task has a budget.",
    "no_providers": "No model has been called yet.",
    "col_time": "time",
    "col_event": "event",
    "col_type": "type",
    "col_task": "task",
    "col_category": "category",
    "col_tier": "tier",
    "col_confidence": "confidence",
    "col_why": "why",
}

ZH = {
    # -- frame
    "console": "控制台",
    "language": "English",
    "theme": "主题：浅色、深色、跟随系统",
    "log_out": "退出登录",
    "help": "快捷键",
    "help_go": "先按 g，再按",
    "zone": "时间为 {zone}",
    "not_allowed": "您的角色没有此权限：需要 {role}。",
    "not_audited": "未执行：审计主题目前无法写入。",
    "stale_users": "无法连接 Kafka：只能查看，不能更改。",
    "no_page": "没有这个页面。",
    "role_viewer": "只读",
    "role_operator": "运维",
    "role_reviewer": "审核",
    "role_admin": "管理员",
    "nothing": "这里还没有内容。",
    "failed": "没有成功：{why}",
    # -- login
    "log_in": "登录",
    "user": "用户名",
    "password": "密码",
    "wrong": "用户名或密码错误。",
    "wait": "登录失败次数过多，请 {seconds} 秒后再试。",
    "busy": "同时登录的人太多，请再试一次。",
    "users_unknown": "无法连接 Kafka，目前不能登录。",
    "no_users": "还没有用户。请在终端里创建：",
    "link_used": "此链接已被使用。请创建用户，或重新启动以获得新链接。",
    "foreign": "请求来自其他页面。请打开控制台后再试。",
    # -- pages
    "page_overview": "总览",
    "page_topics": "主题",
    "page_settings": "设置",
    # -- overview
    "events_in": "输入事件",
    "results_out": "结果",
    "per_second": "每秒，{span} 内平均",
    "lag": "积压",
    "lag_note": "尚未处理的记录，全部阶段",
    "waiting": "等待模型",
    "oldest": "最早的已等 {age}",
    "cost": "今日费用",
    "cost_note": "自当天开始或进程启动",
    "of_budget": "预算 {limit}",
    "dead": "死信",
    "errors": "停止的分区",
    "errors_note": "{span} 内：{failures} 次事务失败，{refusals} 次调用被拒",
    "over_span": "最近 {span}",
    "workers": "工作进程",
    "workers_note": "存活；{silent} 个无应答",
    "no_workers": "没有存活的工作进程。请启动：headrace worker",
    "no_kafka": "无法连接 Kafka。工作进程的数字可能仍会更新，结果不会。",
    "silent_worker": "工作进程 {worker} 无应答（{why}）：这里缺少它的数据。",
    "tiers": "由谁判定",
    "tier_rule": "规则",
    "tier_light": "轻量模型",
    "tier_deep": "深度模型",
    "tier_review": "人工审核",
    "lag_by": "各阶段积压",
    "stage": "阶段",
    "partitions": "分区",
    "total": "合计",
    "providers": "模型服务",
    "breaker_closed": "正常调用",
    "breaker_open": "多次失败后暂停调用",
    "budget": "当日预算",
    "spent": "已用 {settled}，预留 {leased}，上限 {limit}",
    "live": "最新结果",
    "live_note": "抽样，最多 {count} 条",
    "pause": "暂停",
    "go_on": "继续",
    "last_hour": "最近一小时",
    "no_budget": "没有任务设置预算。",
    "no_providers": "还没有调用过模型。",
    "col_time": "时间",
    "col_event": "事件",
    "col_type": "类型",
    "col_task": "任务",
    "col_category": "类别",
    "col_tier": "层级",
    "col_confidence": "置信度",
    "col_why": "原因",
}

TEXTS: dict[Language, dict[str, str]] = {"en": EN, "zh": ZH}


def text(language: Language, key: str, **values: object) -> str:
    """A text with its values.

    Raises:
        KeyError: there is no such text.
    """
    found = TEXTS[language][key]
    return found.format(**values) if values else found


def chosen(cookie: str | None, accepted: str) -> Language:
    """The language somebody chose, else the first of the browser's that there is, else English."""
    if cookie == "zh":
        return "zh"
    if cookie == "en":
        return "en"
    for part in accepted.lower().split(","):
        code = part.split(";")[0].strip()[:2]
        if code == "zh":
            return "zh"
        if code == "en":
            return "en"
    return "en"
