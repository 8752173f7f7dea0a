"""The console as a page of Django's admin site.

    from django.contrib import admin
    from retrysafe.console.on_django_admin import add_console

    add_console(admin.site, actions=True)          # in admin.py or urls.py of the project

Staff see it on the index of the admin site, under "Idempotency keys". The login of the admin site counts. Users for
whom `may_act` is true may act: superusers, unless you say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.apps import apps  # type: ignore[import-untyped]  # Django ships no types
from django.contrib.admin import AdminSite, ModelAdmin  # type: ignore[import-untyped]
from django.urls import path, re_path  # type: ignore[import-untyped]

from retrysafe.console.access import LOOK, Operator
from retrysafe.console.console import Console
from retrysafe.console.on_django import find_staff, make_view
from retrysafe.web.django import conf

APP_LABEL = "retrysafe"


class PageOptions:
    """What the admin site asks of a model. The console has no table, so there is no model behind it."""

    app_label, object_name, model_name = APP_LABEL, "Console", "console"
    verbose_name = verbose_name_plural = "console"
    abstract = swapped = is_composite_pk = False
    concrete_model = None
    label, label_lower = "retrysafe.Console", "retrysafe.console"

    @property
    def app_config(self) -> Any:
        return apps.get_app_config(APP_LABEL)


class ConsolePage:
    """Stands where the admin site has a model."""

    _meta = PageOptions()


def is_superuser(user: Any) -> bool:
    return bool(user.is_superuser)


def add_console(site: AdminSite, *, may_act: Callable[[Any], bool] = is_superuser, **settings: Any) -> None:
    """Put the console of the project's RetrySafe object on this site. `settings` are those of Console."""

    def authorize(operator: Operator, action: str, record: Any) -> bool:
        return action == LOOK or may_act(operator.user)

    @lru_cache(4)
    def build(safe: Any) -> Console:
        return Console(safe, **{"authenticate": find_staff, "authorize": authorize, **settings})

    view = make_view(lambda: build(conf.safe()))

    class ConsoleAdmin(ModelAdmin):  # type: ignore[misc]  # untyped base
        def get_urls(self) -> list[Any]:
            guarded = self.admin_site.admin_view(view)
            return [
                path("", guarded, name="retrysafe_console_changelist"),
                re_path(r"^(?P<rest>.+)$", guarded),
            ]

        def check(self, **options: Any) -> list[Any]:
            return []

        def has_module_permission(self, request: Any) -> bool:
            return bool(self.admin_site.has_permission(request))

        def has_view_permission(self, request: Any, obj: Any = None) -> bool:
            return bool(self.admin_site.has_permission(request))

        def has_add_permission(self, request: Any) -> bool:
            return False

        def has_change_permission(self, request: Any, obj: Any = None) -> bool:
            return False

        def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
            return False

    site.register([ConsolePage], ConsoleAdmin)
