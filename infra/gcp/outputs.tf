output "project" {
  description = "Setting `project`."
  value       = var.project
}

output "bucket" {
  description = "Setting `bucket`: where launches/ and runs/ are."
  value       = google_storage_bucket.results.name
}

output "repository" {
  description = "Setting `repository`: where `launch gcp` pushes the image to."
  value       = local.repository
}

output "service_account" {
  description = "Setting `service_account`: what the VMs run as."
  value       = google_service_account.vm.email
}

output "network" {
  description = "Setting `network`; null: the project's default network."
  value       = local.network
}

output "subnetwork" {
  description = "Setting `subnetwork`, of this name in each region of `subnets`; null: the default network's."
  value       = local.subnetwork
}

output "rooflaunch_toml" {
  description = "The [gcp] table of rooflaunch.toml."
  value = join("", concat(
    ["[gcp]\n"],
    [for key, value in local.settings : "${key} = \"${value}\"\n" if value != null],
  ))
}

locals {
  repository = "${var.region}-docker.pkg.dev/${var.project}/${google_artifact_registry_repository.images.repository_id}/trainer"
  network    = one(google_compute_network.this[*].name)
  subnetwork = one(distinct([for subnet in google_compute_subnetwork.this : subnet.name]))

  settings = {
    project         = var.project
    bucket          = google_storage_bucket.results.name
    repository      = local.repository
    service_account = google_service_account.vm.email
    network         = local.network
    subnetwork      = local.subnetwork
  }
}
