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
