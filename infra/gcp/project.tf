locals {
  # What `launch gcp` and its VMs call; the last one only for the budget.
  services = concat([
    "artifactregistry.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "compute.googleapis.com",
    "iam.googleapis.com",
    "serviceusage.googleapis.com",
    "storage.googleapis.com",
  ], var.billing_account == null ? [] : ["billingbudgets.googleapis.com"], var.use_batch ? ["batch.googleapis.com"] : [])
}

resource "google_project_service" "this" {
  for_each = toset(local.services)

  project = var.project
  service = each.value

  # The project may use them for something else.
  disable_on_destroy = false
}
