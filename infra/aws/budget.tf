# Mail when the account's costs of a month pass a part of the budget. It stops nothing: --max-run-time and --max-cost do.
resource "aws_budgets_budget" "this" {
  count = var.budget_email == null ? 0 : 1

  name         = "rooflaunch"
  budget_type  = "COST"
  time_unit    = "MONTHLY"
  limit_amount = tostring(var.budget_usd_per_month)
  limit_unit   = "USD"

  dynamic "notification" {
    for_each = [50, 90, 100]
    content {
      comparison_operator        = "GREATER_THAN"
      notification_type          = "ACTUAL"
      threshold                  = notification.value
      threshold_type             = "PERCENTAGE"
      subscriber_email_addresses = [var.budget_email]
    }
  }
}
