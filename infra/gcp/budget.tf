# Mail to the billing account's administrators. It stops nothing: --max-run-time and --max-cost do.
data "google_project" "this" {
  count = var.billing_account == null ? 0 : 1

  project_id = var.project
}

resource "google_billing_budget" "this" {
  count    = var.billing_account == null ? 0 : 1
  provider = google.budget

  billing_account = var.billing_account
  display_name    = "rooflaunch in ${var.project}"

  budget_filter {
    projects        = ["projects/${data.google_project.this[0].number}"]
    calendar_period = "MONTH"
  }

  # No currency: the account's.
  amount {
    specified_amount {
      units = tostring(var.budget_per_month)
    }
  }

  threshold_rules {
    threshold_percent = 0.5
  }
  threshold_rules {
    threshold_percent = 0.9
  }
  threshold_rules {
    threshold_percent = 1.0
  }

  depends_on = [google_project_service.this]
}
