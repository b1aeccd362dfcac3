# With use_batch: `launch batch`. Batch's own agent on a VM reports to it, and launchers make, read and cancel jobs.
resource "google_project_iam_member" "vm_batch" {
  count = var.use_batch ? 1 : 0

  project = var.project
  role    = "roles/batch.agentReporter"
  member  = google_service_account.vm.member
}

resource "google_project_iam_member" "launchers_batch" {
  for_each = var.use_batch ? var.launchers : toset([])

  project = var.project
  role    = "roles/batch.jobsEditor"
  member  = each.value
}
