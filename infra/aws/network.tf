data "aws_vpc" "this" {
  id      = var.vpc
  default = var.vpc == null ? true : null
}

# Nothing gets in. The VM reaches S3, the registry and AWS's other services by itself.
resource "aws_security_group" "vm" {
  name        = "rooflaunch"
  description = "VMs of launch aws: nothing gets in"
  vpc_id      = data.aws_vpc.this.id

  # An empty list, and not none: rules that somebody adds by hand are removed by the next apply.
  ingress = []

  egress {
    description = "everything out"
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}
