# With create_network: VMs without external addresses still reach the bucket and the registry (Private Google Access),
# and Ubuntu's and NVIDIA's package servers (Cloud NAT), which the start-up script needs for Docker's GPU runtime.
locals {
  subnets = var.create_network ? var.subnets : {}
}

resource "google_compute_network" "this" {
  count = var.create_network ? 1 : 0

  project                 = var.project
  name                    = "rooflaunch"
  auto_create_subnetworks = false

  depends_on = [google_project_service.this]
}

# The same name in each region, so that one setting serves every zone that `launch gcp` tries.
resource "google_compute_subnetwork" "this" {
  for_each = local.subnets

  project                  = var.project
  region                   = each.key
  name                     = "rooflaunch"
  network                  = google_compute_network.this[0].id
  ip_cidr_range            = each.value
  private_ip_google_access = true
}

resource "google_compute_router" "this" {
  for_each = local.subnets

  project = var.project
  region  = each.key
  name    = "rooflaunch"
  network = google_compute_network.this[0].id
}

resource "google_compute_router_nat" "this" {
  for_each = local.subnets

  project                            = var.project
  region                             = each.key
  router                             = google_compute_router.this[each.key].name
  name                               = "rooflaunch"
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "LIST_OF_SUBNETWORKS"

  subnetwork {
    name                    = google_compute_subnetwork.this[each.key].id
    source_ip_ranges_to_nat = ["ALL_IP_RANGES"]
  }
}

# A network without rules lets nothing in either; written down, it shows in an audit.
resource "google_compute_firewall" "deny_ingress" {
  count = var.create_network ? 1 : 0

  project       = var.project
  name          = "rooflaunch-deny-ingress"
  network       = google_compute_network.this[0].id
  direction     = "INGRESS"
  priority      = 65000
  source_ranges = ["0.0.0.0/0"]

  deny {
    protocol = "all"
  }
}

resource "google_compute_firewall" "iap_ssh" {
  count = var.create_network && var.iap_ssh ? 1 : 0

  project   = var.project
  name      = "rooflaunch-iap-ssh"
  network   = google_compute_network.this[0].id
  direction = "INGRESS"
  priority  = 1000
  # Identity-Aware Proxy's range: https://cloud.google.com/iap/docs/using-tcp-forwarding
  source_ranges = ["35.235.240.0/20"]

  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}
